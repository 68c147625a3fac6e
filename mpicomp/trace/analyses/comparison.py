"""Two traces side by side: what became slower, what faster, and what is only noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from .frame import CLASS_NAMES, Frame, compact, opened, spread_of
from .over_steps import step_table

_BLOCKS = 10
_SURE = 3.0  # standard errors


def diff(a: Any, b: Any, skip: int = 1) -> dict:
    """Compare two traces phase by phase: time a rank spends on it in a step, in medians over steps.

    The noise is three standard errors of the difference, from the medians of ten blocks of consecutive steps of each
    trace: neighbouring steps are alike, so single ones would promise too much. What differs between two launches (other
    nodes, other neighbours) is in no single trace; three launches of each say more. Needs no comparison of clocks.

    Parameters
    ----------
    a, b : path or Trace
        Before and after.
    skip : int
        Leave out so many steps at the beginning.

    Returns
    -------
    dict
        Table ``phases``: ``kind class a b change ratio noise verdict``: ns, ns of b - a, b / a, ns; the verdict is
        slower, faster, same (less than the noise), new or gone, or unknown (fewer than 20 steps). ``step``, first, is
        the whole step, its other row ``(rest of step)``. ``bytes_a bytes_b``: sent a rank and step; ``steps_a
        steps_b``; ``different``: facts of the runs that differ, each as [a, b].
    """
    with opened(a) as first, opened(b) as second:
        sides = [_per_step(frame, skip) for frame in (first, second)]
        kinds = list(dict.fromkeys([*sides[0]["time"], *sides[1]["time"]]))
        rows = [_compared(kind, first, second, *(side["time"].get(kind) for side in sides)) for kind in kinds]
        rows = [*rows[:1], *sorted(rows[1:], key=lambda row: -abs(row["change"]))] if rows else rows
        return {
            "steps_a": sides[0]["steps"],
            "steps_b": sides[1]["steps"],
            "bytes_a": sides[0]["bytes"],
            "bytes_b": sides[1]["bytes"],
            "phases": {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {},
            "different": _different(first, second),
            "clock_uncertainty": None,
        }


def _per_step(frame: Frame, skip: int) -> dict:
    """ns a rank (mean over those that recorded), one number a step, for each kind."""
    table = step_table(frame)
    numbers, ranks = table["step"][skip:], table["ranks"][skip:]
    time: dict[str, np.ndarray] = {}
    if len(numbers):
        time["step"] = table["duration"][skip:].astype(np.float64)
        step, kind = frame.step[frame.pieces.event], frame.kind[frame.pieces.event]
        chosen = np.isin(step, numbers)
        code, (kinds,) = compact(kind[chosen])
        cell = code * len(numbers) + np.searchsorted(numbers, step[chosen])
        sums = np.bincount(cell, frame.pieces.own[chosen], len(kinds) * len(numbers)).reshape(len(kinds), -1) / ranks
        names = [frame.kinds[code] for code in kinds]
        time |= {"(rest of step)" if name == "step" else name: row for name, row in zip(names, sums, strict=True)}
    carried = np.isin(frame.step, numbers) & frame.carriers
    sent = float(frame.column("nbytes_sent")[carried].sum())
    return {"time": time, "steps": len(numbers), "bytes": sent / max(1, int(ranks.sum()))}


def _compared(kind: str, first: Frame, second: Frame, a: np.ndarray | None, b: np.ndarray | None) -> dict:
    before, after = (0.0 if values is None else float(np.median(values)) for values in (a, b))
    noise = np.nan
    if a is None or b is None:
        verdict = "new" if a is None else "gone"
    elif min(len(a), len(b)) < 2 * _BLOCKS:
        verdict = "unknown"
    else:
        noise = _SURE * float(np.hypot(_error(a), _error(b)))
        verdict = "same" if abs(after - before) <= noise else "slower" if after > before else "faster"
    code = max(first.code(kind), -1), max(second.code(kind), -1)
    cls = first.classes[code[0]] if code[0] >= 0 else second.classes[code[1]] if code[1] >= 0 else 0
    return {"kind": kind, "class": CLASS_NAMES[cls], "a": before, "b": after, "change": after - before,
            "ratio": after / before if before else np.nan, "noise": noise, "verdict": verdict}  # fmt: skip


def _error(values: np.ndarray) -> float:
    """Standard error of the median, from those of blocks of steps that follow each other."""
    medians = np.array([np.median(block) for block in np.array_split(values, _BLOCKS)])
    return max(spread_of(medians), float(medians.std(ddof=1))) / np.sqrt(_BLOCKS)


def _different(first: Frame, second: Frame) -> dict[str, list]:
    names = ("n_ranks", "n_nodes", "command_line", "mpi_library", "mpi4py_version", "numpy_version", "cupy_version",
             "python_version", "creator", "git_revision", "environment", "complete")  # fmt: skip
    a, b = first.trace.attributes, second.trace.attributes
    return {name: [a.get(name), b.get(name)] for name in names if a.get(name) != b.get(name)}
