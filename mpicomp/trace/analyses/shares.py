"""Shares of the time: by phase and rank, hidden and exposed communication, and POP efficiencies."""

from __future__ import annotations

import numpy as np

from ..tables import Result, Table
from .frame import CLASS_NAMES, COMMUNICATION, COMPRESSION, Frame, Given, opened


def breakdown(path: Given) -> Result:
    """Time of each kind of event on each rank, every instant counted once: shares add up to 1.

    An instant belongs to the event that began last, so a broadcast inside a compression is not counted in it, and
    "step" is the time of a step outside of all recorded phases. Needs no comparison of clocks.

    Returns
    -------
    dict
        ``overall``: table, a row per kind: ``kind class time share mean min max slowest_rank cv`` (per rank, in ns);
        ``classes``: table ``class time share``; ``ranks``: table ``rank span`` and a column per class, ``unrecorded``
        last; ``kinds`` and ``time``: names, and the array (ranks, kinds) in ns.
    """
    with opened(path) as frame:
        pieces, n = frame.pieces, frame.n_ranks
        cell = frame.rank[pieces.event].astype(np.int64) * len(frame.kinds) + frame.kind[pieces.event]
        time = np.bincount(cell, pieces.own, n * len(frame.kinds)).reshape(n, -1)
        present = np.flatnonzero(time.any(axis=0))
        by_class = np.stack([time[:, frame.classes == code].sum(axis=1) for code in range(len(CLASS_NAMES))], axis=1)
        unrecorded = frame.span - by_class.sum(axis=1)
        whole = float(frame.span.sum()) or 1.0
        return {
            "overall": _overall(frame, time, present, whole),
            "classes": {
                "class": np.array([*CLASS_NAMES, "unrecorded"]),
                "time": np.append(by_class.sum(axis=0), unrecorded.sum()),
                "share": np.append(by_class.sum(axis=0), unrecorded.sum()) / whole,
            },
            "ranks": {"rank": np.arange(n), "span": frame.span, **dict(zip(CLASS_NAMES, by_class.T, strict=True)),
                      "unrecorded": unrecorded},
            "kinds": [frame.kinds[code] for code in present],
            "time": time[:, present],
            "clock_uncertainty": None,
        }  # fmt: skip


def _overall(frame: Frame, time: np.ndarray, present: np.ndarray, whole: float) -> Table:
    present = present[np.argsort(-time[:, present].sum(axis=0), kind="stable")]
    recorded = time[frame.span > 0][:, present]  # ranks that recorded nothing say nothing about balance
    mean = recorded.mean(axis=0) if len(recorded) else np.zeros(len(present))
    return {
        "kind": np.array([frame.kinds[code] for code in present], dtype=str),
        "class": np.array([CLASS_NAMES[frame.classes[code]] for code in present], dtype=str),
        "time": time[:, present].sum(axis=0),
        "share": time[:, present].sum(axis=0) / whole,
        "mean": mean,
        "min": recorded.min(axis=0) if len(recorded) else mean,
        "max": recorded.max(axis=0) if len(recorded) else mean,
        "slowest_rank": time[:, present].argmax(axis=0),
        "cv": recorded.std(axis=0) / np.maximum(mean, 1.0) if len(recorded) else mean,
    }


def overlap(path: Given, enclosed: bool = True) -> Result:
    """Communication hidden under work of the same rank, and exposed communication, for which the rank waited.

    Hidden is the time in which a communication is open and the rank computes, or compresses while it waits (``update``
    inside ``exchange``). Communication inside a compression (``broadcast``) blocks, and is exposed.

    Parameters
    ----------
    enclosed : bool
        Count communication recorded wholly inside a computation as hidden, which is right for calls that do not
        block. For calls that block give False. The trace does not know which.

    Returns
    -------
    dict
        ``communication hidden exposed enclosed`` (ns, all ranks) and ``share`` = hidden / communication; the same by
        rank and by step (ns per rank) in the tables ``ranks`` and ``steps``. Needs no comparison of clocks.
    """
    with opened(path) as frame:
        pieces, open_ = frame.pieces, frame.open_communication
        hidden = frame.hidden(enclosed)
        columns = {"communication": open_, "hidden": hidden, "exposed": open_ & ~hidden, "enclosed": frame.enclosed}
        ranks = {name: frame.by_rank(pieces.own, chosen) for name, chosen in columns.items()}
        step = frame.step[pieces.event]
        numbers, place = np.unique(step[step >= 0], return_inverse=True)
        own, counts = pieces.own[step >= 0], frame.ranks_in(numbers)  # some ranks may have been killed earlier
        steps = {
            name: np.bincount(place, own * chosen[step >= 0], len(numbers)) / counts
            for name, chosen in columns.items()
        }
        total = {name: float(values.sum()) for name, values in ranks.items()}
        return {
            **total,
            "share": total["hidden"] / total["communication"] if total["communication"] else None,
            "enclosed_counts_as_hidden": enclosed,
            "ranks": {"rank": np.arange(frame.n_ranks), **ranks, "share": _ratio(ranks)},
            "steps": {"step": numbers, **steps, "share": _ratio(steps)},
            "clock_uncertainty": None,
        }


def _ratio(columns: Table) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return columns["hidden"] / columns["communication"]


def efficiency(path: Given, skip: int = 0, enclosed: bool = True) -> Result:
    """POP efficiencies of the steps: products of factors in [0, 1] that name the losses.

    With U_r the useful time of rank r (all but exposed communication; unrecorded time counts as useful), T the
    time of the longest rank from its first step to its last, and T_0 the time on an infinitely fast network::

        parallel_efficiency      = mean(U) / T    = load_balance x communication_efficiency
        load_balance             = mean(U) / max(U)
        communication_efficiency = max(U) / T     = serialisation x transfer
        serialisation            = max(U) / T_0
        transfer                 = T_0 / T
        computation_share        = part of the useful time that is not compression

    Shares of a useful time of zero are None.

    T_0 replays the run: between two communications each rank takes the recorded time, and every communication ends
    when the last rank arrives. It is known only if all ranks made the same communications, and is an upper bound if
    some did not wait for all (a broadcast). Needs no comparison of clocks.

    Reference: Performance Optimisation and Productivity centre, "POP standard metrics for parallel performance
    analysis"; Rosas et al., Parallel Computing 2014.

    Parameters
    ----------
    skip : int
        Number of first steps to leave out: they pay for allocation and connections.
    """
    with opened(path) as frame:
        first, last, n_steps = _window(frame, skip)
        ran = last > first
        if not ran.any():
            reason = "no step after those to skip" if len(frame.steps["step"]) else "no step was recorded"
            return {"steps": 0, "reason": reason, "clock_uncertainty": None}
        inside = _inside(frame, first, last)
        exposed = inside & frame.open_communication & ~frame.hidden(enclosed)
        whole = (last - first).astype(np.float64)
        useful = whole - frame.by_rank(frame.pieces.own, exposed)
        compressing = inside & (frame.classes[frame.kind[frame.pieces.event]] == COMPRESSION)
        compression = frame.by_rank(frame.pieces.own, compressing)
        ideal, reason = _ideal(frame, first, last, inside, exposed)
        run, longest = float(whole.max()), float(useful[ran].max())
        mean = float(useful[ran].mean())
        return {
            "steps": n_steps,
            "time": run,
            "parallel_efficiency": mean / run,
            "load_balance": mean / longest if longest else None,
            "communication_efficiency": longest / run,
            "serialisation": longest / ideal if ideal else None,
            "transfer": ideal / run if ideal else None,
            "computation_share": 1 - float(compression[ran].sum() / useful[ran].sum()) if longest else None,
            "ideal_time": ideal,
            "reason": reason,
            "ranks": {"rank": np.flatnonzero(ran), "time": whole[ran], "useful": useful[ran],
                      "compression": compression[ran]},
            "clock_uncertainty": None,
        }  # fmt: skip


def _window(frame: Frame, skip: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Begin of the first step and end of the last on each rank (0 without steps), and the number of steps."""
    table = frame.steps
    numbers = np.unique(table["step"])[max(skip, 0) :]
    chosen = np.isin(table["step"], numbers)
    first = np.full(frame.n_ranks, np.iinfo(np.int64).max)
    last = np.full(frame.n_ranks, np.iinfo(np.int64).min)
    np.minimum.at(first, table["rank"][chosen], table["t_start"][chosen])
    np.maximum.at(last, table["rank"][chosen], table["t_end"][chosen])
    absent = ~np.isin(np.arange(frame.n_ranks), table["rank"][chosen])
    first[absent] = last[absent] = 0
    return first, last, len(numbers)


def _inside(frame: Frame, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    rank = frame.rank[frame.pieces.event]
    return (frame.pieces.begin >= first[rank]) & (frame.pieces.end <= last[rank])


def _ideal(frame: Frame, first: np.ndarray, last: np.ndarray, inside: np.ndarray,
           exposed: np.ndarray) -> tuple[float | None, str]:  # fmt: skip
    """Time of the run on an infinitely fast network, or the reason why it is unknown."""
    pieces = frame.pieces
    kind, rank = frame.kind[pieces.event], frame.rank[pieces.event]
    starts = inside & frame.outermost(COMMUNICATION)[pieces.event]
    starts &= pieces.begin == frame.column("t_start")[pieces.event]
    ranks = np.flatnonzero(last > first)
    counts = np.bincount(rank[starts], minlength=frame.n_ranks)[ranks]
    if len(set(counts.tolist())) > 1:
        return None, f"ranks made between {counts.min()} and {counts.max()} communications: they cannot be matched"
    calls = int(counts[0])
    sequence = kind[starts].reshape(len(ranks), calls)
    if (sequence != sequence[:1]).any():
        return None, "ranks made different communications in different order: they cannot be matched"
    begin = pieces.begin[starts].reshape(len(ranks), calls)
    bounds = np.concatenate([first[ranks, None], begin, last[ranks, None]], axis=1)
    # Exposed time counts from one communication's begin to the next one's.
    number = np.cumsum(starts)
    number -= np.concatenate([[0], np.cumsum(counts)])[np.searchsorted(ranks, rank)]
    cell = np.searchsorted(ranks, rank[exposed]) * (calls + 1) + number[exposed]
    waited = np.bincount(cell, pieces.own[exposed], len(ranks) * (calls + 1)).reshape(len(ranks), calls + 1)
    return float((np.diff(bounds, axis=1) - waited).max(axis=0).sum()), ""

