"""Analyses over the steps of a run: durations, spikes with their causes, and slow ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...errors import InvalidArgument
from .. import tables
from ..tables import Result, Table
from .arrivals import lateness_of_all, worst_pair
from .frame import (
    BLOCKS,
    CLASS_NAMES,
    COMMUNICATION,
    SURE,
    Frame,
    Given,
    block_medians,
    choose,
    compact,
    grouped,
    median_of,
    opened,
    quantities,
    spread_of,
)


def steps(path: Given) -> Result:
    """Durations of the steps, their drift, and the time of each class of events in them.

    A step lasts as long as its slowest rank. The drift compares the first third of the steps with the last; ``drifts``
    is True if it exceeds three standard errors, taken from the medians of ten blocks of consecutive steps.

    Returns
    -------
    dict
        ``count first median p90 p99 min max total`` (ns), ``spread`` (robust standard deviation, ns), ``drift`` and
        ``drift_noise`` (fractions of the median; None below 30 steps, or of 0), ``drifts``; table ``steps``: ``step
        ranks duration median_rank slowest_rank`` and ns per rank of each class. Needs no comparison of clocks.
    """
    with opened(path) as frame:
        table = step_table(frame)
        if not len(table["step"]):
            return {"count": 0, "clock_uncertainty": None}
        duration = table["duration"]
        return {
            "first": int(duration[0]),
            **quantities(duration),
            "spread": spread_of(duration),
            **_drift(duration),
            "steps": table | _classes(frame, table["step"]),
            "clock_uncertainty": None,
        }


def step_table(frame: Frame) -> Table:
    """Number of ranks, duration (the slowest rank's), median rank's duration and slowest rank of each step."""
    table = frame.steps
    lasted = table["t_end"] - table["t_start"]
    if not len(lasted):
        return dict.fromkeys(("step", "ranks", "duration", "median_rank", "slowest_rank"), lasted)
    numbers, starts, (ordered, rank) = grouped(table["step"], lasted, table["rank"])
    ends = np.append(starts[1:], len(ordered))
    return {
        "step": numbers,
        "ranks": ends - starts,
        "duration": ordered[ends - 1],
        "median_rank": (ordered[(starts + ends - 1) // 2] + ordered[(starts + ends) // 2]) / 2,
        "slowest_rank": rank[ends - 1],
    }


def _classes(frame: Frame, numbers: np.ndarray) -> Table:
    """Time (ns) of each class in each step, mean over the ranks that recorded any."""
    pieces = frame.pieces
    step = frame.step[pieces.event]
    chosen = np.isin(step, numbers)
    place = np.searchsorted(numbers, step[chosen])
    code = frame.classes[frame.kind[pieces.event[chosen]]]
    sums = np.bincount(place * len(CLASS_NAMES) + code, pieces.own[chosen], len(numbers) * len(CLASS_NAMES))
    return dict(zip(CLASS_NAMES, sums.reshape(-1, len(CLASS_NAMES)).T / frame.ranks_in(numbers), strict=True))


def _drift(duration: np.ndarray) -> Result:
    third, middle = BLOCKS // 3, float(np.median(duration))
    if len(duration) < 3 * BLOCKS or not middle:
        return {"drift": None, "drift_noise": None, "drifts": False}
    medians = block_medians(duration)
    drift = (np.median(medians[-third:]) - np.median(medians[:third])) / middle
    # The scatter of blocks around a line is the noise; sqrt(2/third): two medians of that many blocks.
    course = np.polynomial.Polynomial.fit(np.arange(BLOCKS), medians, 1)
    noise = SURE * spread_of(medians - course(np.arange(BLOCKS))) * np.sqrt(2 / third) / middle
    return {"drift": float(drift), "drift_noise": float(noise), "drifts": bool(abs(drift) > noise)}


def spikes(path: Given, threshold: float = 1.5) -> Result:
    """Steps that took much longer than the median one, and their causes.

    The cause is the rank and phase (communication aside, in which the others only wait) with the greatest time above
    its own median, if that makes up half of the step's excess; ``ranks`` counts the ranks with half as much excess in
    that phase. Otherwise it is the communication itself, named by its phase, with ``rank`` -1.

    Parameters
    ----------
    threshold : float
        A spike lasts more than this many medians, and more than five robust standard deviations above the median.

    Returns
    -------
    dict
        ``median``, ``limit`` (ns), ``count`` (of steps in ``steps``), table ``spikes``: ``step duration ratio excess
        cause rank phase phase_excess ranks``, longest first. Needs no comparison of clocks.
    """
    if not threshold > 1:
        raise InvalidArgument(f"threshold must be above 1, got {threshold}")
    with opened(path) as frame:
        table = step_table(frame)
        if not len(table["step"]):
            return {"steps": 0, "count": 0, "clock_uncertainty": None}
        middle = float(np.median(table["duration"]))
        limit = max(threshold * middle, middle + 5 * spread_of(table["duration"]))
        found = np.flatnonzero(table["duration"] > limit)
        found = found[np.argsort(-table["duration"][found], kind="stable")]
        lasted = table["duration"][found]
        rows = [{"step": step, "duration": duration, "ratio": duration / middle if middle else np.nan,
                 "excess": duration - middle, **cause}
                for step, duration, cause in zip(table["step"][found], lasted, _causes(frame, table, found, middle),
                                                 strict=True)]
        return {
            "steps": len(table["step"]),
            "median": middle,
            "limit": limit,
            "count": len(found),
            "spikes": tables.of_rows(rows),
            "clock_uncertainty": None,
        }


def _causes(frame: Frame, table: Result, found: np.ndarray, middle: float) -> Iterator[Result]:
    """The cause of each spike, by the excess of all its phases over the median step."""
    if not len(found):
        return
    pieces = frame.pieces
    step, kind, rank = (values[pieces.event] for values in (frame.step, frame.kind, frame.rank))
    cell, (ranks, kinds, steps) = compact(rank, kind, step)
    time = np.bincount(cell, pieces.own)
    phase = ranks.astype(np.int64) * len(frame.kinds) + kinds
    phases, usual = median_of(phase[steps >= 0], time[steps >= 0])
    names = np.array(frame.kinds)
    for row in found:
        rows = np.flatnonzero(steps == table["step"][row])
        excess = time[rows] - usual[np.searchsorted(phases, phase[rows])]
        waits = frame.classes[kinds[rows]] == COMMUNICATION
        yield _cause(table["duration"][row] - middle, ranks[rows], names[kinds[rows]], waits, excess)


def _cause(whole: float, rank: np.ndarray, phase: np.ndarray, waits: np.ndarray, excess: np.ndarray) -> Result:
    """The phase with the greatest excess: work, if it makes up half of the ``whole`` excess, else communication."""
    for waiting in (False, True):
        some = np.flatnonzero(waits == waiting)
        worst = some[np.argmax(excess[some])] if len(some) else -1
        if worst < 0 or (not waiting and excess[worst] < whole / 2):
            continue
        many = len(np.unique(rank[(phase == phase[worst]) & (excess >= excess[worst] / 2)]))
        return {"cause": "communication" if waiting else "rank" if many == 1 else "ranks",
                "rank": -1 if waiting else int(rank[worst]), "phase": phase[worst],
                "phase_excess": float(excess[worst]), "ranks": many}
    return {"cause": "unknown", "rank": -1, "phase": "", "phase_excess": 0.0, "ranks": 0}


def heatmap(path: Given, value: str = "duration", max_ranks: int = 4096, max_steps: int = 4096) -> Result:
    """An array (ranks, steps) of a quantity of each rank in each step; large runs are averaged into bins.

    Parameters
    ----------
    value : str
        ``duration`` of the step; ``lateness`` at its communications against the median rank; ``sent`` bytes; a class
        (``compute compression communication other``) or a kind of event, in ns.
    max_ranks, max_steps : int
        Largest number of rows and columns.

    Returns
    -------
    dict
        ``matrix`` (NaN: nothing recorded), ``rank`` and ``step``: the first of each row and column; ``units``;
        ``clock_uncertainty`` in ns for lateness, else None.
    """
    with opened(path) as frame:
        choices = dict.fromkeys(["duration", "lateness", "sent", *CLASS_NAMES, *frame.kinds])
        rank, step, amount = _amounts(frame, choose("value", value, choices))
        kept = step >= 0
        numbers = np.unique(step[kept])
        height, width = min(frame.n_ranks, max(1, max_ranks)), min(len(numbers), max(1, max_steps))
        row = rank[kept].astype(np.int64) * height // max(1, frame.n_ranks)
        column = np.searchsorted(numbers, step[kept]) * width // max(1, len(numbers))
        cell = row * width + column
        counts = np.bincount(cell, minlength=height * width)
        with np.errstate(invalid="ignore"):
            matrix = np.bincount(cell, amount[kept], height * width) / counts
        return {
            "value": value,
            "units": "byte" if value == "sent" else "ns",
            "matrix": matrix.reshape(height, width),
            "rank": -(-np.arange(height) * frame.n_ranks // height),
            "step": numbers[-(-np.arange(width) * len(numbers) // width)] if width else numbers,
            "clock_uncertainty": worst_pair(frame) if value == "lateness" else None,
        }


def _amounts(frame: Frame, value: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rank, step and amount, a row for each rank and step."""
    if value == "duration":
        table = frame.steps
        return table["rank"], table["step"], (table["t_end"] - table["t_start"]).astype(np.float64)
    if value == "lateness":
        rows, late = lateness_of_all(frame)
        number, (rank, step) = compact(frame.rank[rows], frame.step[rows])
        return rank, step, np.bincount(number, late) / np.maximum(np.bincount(number), 1)
    if value == "sent":
        sent = frame.column("nbytes_sent").astype(np.float64)
        number, (rank, step) = compact(frame.rank, frame.step)
        return rank, step, np.bincount(number, sent * frame.carriers, len(rank))
    event = frame.pieces.event
    number, (rank, step) = compact(frame.rank[event], frame.step[event])
    kind = frame.kind[event]
    chosen = frame.classes[kind] == CLASS_NAMES.index(value) if value in CLASS_NAMES else kind == frame.code(value)
    return rank, step, np.bincount(number, frame.pieces.own * chosen, len(rank))

