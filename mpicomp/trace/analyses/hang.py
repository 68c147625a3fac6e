"""State of a run that did not end: the call that each rank is in, and the ranks that the others wait for."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from ..files import PART_FILES
from ..journal import SUFFIX
from ..merge_journals import recover
from ..read import Trace
from ..schema import ERROR
from ..tables import Result, Table
from .arrivals import worst_pair
from .frame import CLASS_OF, COMMUNICATION, Frame, Given, opened


def hang(path: Given) -> Result:
    """The last position of each rank of an unfinished run, and the ranks that the others waited for.

    A recorder notes the event that its rank is in once that has lasted longer than a second. Ranks in a communication
    wait for those that are elsewhere, ended or left no recording. If all are in communications, the calls with the
    fewest ranks are suspect. Without notes (the run was killed at once), the ranks that recorded fewest steps, then
    fewest communications, are behind.

    Parameters
    ----------
    path : path or Trace
        The spool folder of a run that still runs, hangs or was killed (``NAME.h5.spool``), one journal of it, or a
        recovered trace. Nothing is changed.

    Returns
    -------
    dict
        ``finished`` (all ranks recorded to their end), ``last_step`` that every rank finished, ``furthest_step`` any
        did, ``suspects`` (ranks), ``why``; table ``ranks``: ``rank status step calls last in in_step behind``: the
        last step finished, communications recorded, the last event's kind, the event that the rank is in ("": unknown)
        and its step, and the ns from its last record to the last one of all (NaN: none), to ``clock_uncertainty``.
    """
    if isinstance(path, (Trace, Frame)) or not _has_journals(Path(path)):
        with opened(path) as frame:
            return _position(frame)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run.h5"
        recover(path, output)
        with opened(output) as frame:
            return _position(frame)


def _position(frame: Frame) -> Result:
    ranks = _ranks(frame)
    steps = ranks["step"]
    finished = all(status == "closed" for status in ranks["status"])
    suspects, why = ([], "all ranks recorded to their end") if finished else _suspects(ranks)
    return {
        "finished": finished,
        "last_step": int(steps.min(initial=np.iinfo(np.int64).max)) if len(steps) else -1,
        "furthest_step": int(steps.max(initial=-1)),
        "suspects": suspects,
        "why": why,
        "ranks": ranks,
        "clock_uncertainty": worst_pair(frame),
    }


def _ranks(frame: Frame) -> Table:
    n, every = frame.n_ranks, np.arange(frame.n_ranks)
    step, finished = np.full(n, -1, np.int64), frame.rows_of("step")
    finished = finished[frame.column("flags")[finished] & ERROR == 0]
    np.maximum.at(step, frame.rank[finished], frame.step[finished])
    end = frame.corrected(np.arange(len(frame.rank)), "t_end")
    order = np.lexsort((end, frame.rank))
    last = np.searchsorted(frame.rank, every, side="right") - 1
    came = (last >= 0) & (frame.rank[np.maximum(last, 0)] == every) if len(order) else np.zeros(n, bool)
    row = order[np.maximum(last, 0)][came] if len(order) else order
    kind, behind = np.full(n, "", dtype=object), np.full(n, np.nan)
    kind[came] = np.array(frame.kinds, dtype=object)[frame.kind[row]]
    behind[came] = end.max(initial=0) - end[row]
    doing, doing_step = _doing(frame)
    communicates = frame.classes[frame.kind] == COMMUNICATION
    return {
        "rank": every,
        "status": np.array(frame.trace.status()),
        "step": step,
        "calls": np.bincount(frame.rank[communicates], minlength=n),
        "last": kind.astype(str),
        "in": doing,
        "in_step": doing_step,
        "behind": behind,
    }


def _doing(frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    """Kind and step of the event that each rank's recorder noted last."""
    kind, step = np.full(frame.n_ranks, "", dtype=object), np.full(frame.n_ranks, -1, np.int64)
    if any("open" in file for file in frame.trace.files):
        table = frame.trace.bounded("open")
        kind[table["rank"]] = [name.decode("ascii", "replace") for name in table["kind"]]
        step[table["rank"]] = table["step"]
    return kind.astype(str), step


def _has_journals(path: Path) -> bool:
    """Return True for a spool folder, or a journal of one; a folder of a trace's parts has none."""
    return path.suffix == SUFFIX or (path.is_dir() and not any(path.glob(PART_FILES)))


def _suspects(ranks: Table) -> tuple[list[int], str]:
    waits = np.array([CLASS_OF.get(kind, 0) == COMMUNICATION for kind in ranks["in"]])
    if waits.any() and not waits.all():
        kinds = " and ".join(sorted(set(ranks["in"][waits].tolist())))
        return np.flatnonzero(~waits).tolist(), f"the others wait in {kinds}, which these ranks did not come to"
    if waits.all():
        calls = [f"{kind} {step}" for kind, step in zip(ranks["in"], ranks["in_step"], strict=True)]
        names, place, counts = np.unique(calls, return_inverse=True, return_counts=True)
        if len(names) > 1:
            odd = np.flatnonzero(counts[place] < counts.max())
            return odd.tolist(), "ranks wait in different calls: " + ", ".join(
                f"{count} in {name.replace(' -1', '').replace(' ', ' of step ')}"
                for name, count in zip(names, counts, strict=True)
            )
        return [], f"all ranks are in {ranks['in'][0]}: look at the network, or at what the calls disagree on"
    progress = ranks["step"] * (int(ranks["calls"].max(initial=0)) + 1) + ranks["calls"]
    behind = np.flatnonzero(progress < progress.max())
    if len(behind):
        worst = np.flatnonzero(progress == progress.min())
        return worst.tolist(), "they recorded fewest steps and communications"
    return [], "all ranks recorded equally much"
