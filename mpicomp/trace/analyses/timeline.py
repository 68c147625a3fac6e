"""Timeline of one step: the events of all ranks on one clock."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from ..tables import Result, Table
from .arrivals import worst_pair
from .frame import CLASS_NAMES, Frame, Given, opened
from .nesting import cut
from .over_steps import step_table

_MOST_RANKS = 64


def timeline(path: Given, step: int | str = "median", ranks: list[int] | None = None) -> Result:
    """The events of one step on all ranks; of those open at the same time the one that began last is shown.

    Times count from the first begin, on the reference rank's clock: two ranks compare to ``clock_uncertainty``.

    Parameters
    ----------
    step : int or str
        Number of a step, or ``median`` or ``slowest``: the step of that duration.
    ranks : list of int, optional
        By default the first 64.

    Returns
    -------
    dict
        ``step duration ranks``, table ``spans``: ``rank begin end kind class``, ns, by rank and begin;
        ``clock_uncertainty`` in ns.
    """
    with opened(path) as frame:
        number = _chosen_step(frame, step)
        shown = np.arange(min(frame.n_ranks, _MOST_RANKS)) if ranks is None else np.unique(np.array(ranks, np.int64))
        if len(shown) and not 0 <= shown[0] <= shown[-1] < frame.n_ranks:
            raise InvalidArgument(f"ranks must be in 0..{frame.n_ranks - 1}, got {shown[0]}..{shown[-1]}")
        rows = np.flatnonzero((frame.step == number) & np.isin(frame.rank, shown))
        begin, end = frame.corrected(rows, "t_start"), frame.corrected(rows, "t_end")
        origin = int(begin.min(initial=np.iinfo(np.int64).max)) if len(rows) else 0
        bits = np.zeros(len(rows), np.uint8)
        pieces = cut(frame.rank[rows], begin - origin, end - origin, bits)
        kind = frame.kind[rows[pieces.event]]
        return {
            "step": int(number),
            "duration": int(pieces.end.max(initial=0)),
            "ranks": shown,
            "spans": {
                "rank": frame.rank[rows[pieces.event]],
                "begin": pieces.begin,
                "end": pieces.end,
                "kind": np.array(frame.kinds)[kind],
                "class": np.array(CLASS_NAMES)[frame.classes[kind]],
            },
            "clock_uncertainty": worst_pair(frame),
        }


def _chosen_step(frame: Frame, step: int | str) -> int:
    table = step_table(frame)
    if not len(table["step"]):
        raise InvalidArgument("no step was recorded: put the training step in `with recorder.step(number)`")
    if step == "slowest":
        return int(table["step"][table["duration"].argmax()])
    if step == "median":
        return int(table["step"][np.argsort(table["duration"], kind="stable")[(len(table["step"]) - 1) // 2]])
    if isinstance(step, str) or step not in table["step"]:
        first, last = table["step"][[0, -1]]
        raise InvalidArgument(f"step must be median, slowest or one of the steps in {first}..{last}, got {step!r}")
    return int(step)


def paint(spans: Table, ranks: np.ndarray, duration: int, width: int) -> np.ndarray:
    """Array (ranks, width): row of ``spans`` that covers the middle of each cell, -1 for none."""
    cells = np.full((len(ranks), width), -1)
    for row, rank in enumerate(ranks):
        own = np.flatnonzero(spans["rank"] == rank)
        if len(own):
            middle = (np.arange(width) + 0.5) * duration / width
            place = np.searchsorted(spans["begin"][own], middle, side="right") - 1
            seen = (place >= 0) & (spans["end"][own][np.maximum(place, 0)] > middle)
            cells[row, seen] = own[place[seen]]
    return cells
