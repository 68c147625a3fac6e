"""Comparison of two traces phase by phase, with the noise."""

from __future__ import annotations

import numpy as np

from .. import tables
from ..tables import Result, Table
from .frame import BLOCKS, CLASS_NAMES, SURE, Frame, Given, block_medians, compact, opened, spread_of
from .over_steps import step_table


def diff(a: Given, b: Given, skip: int = 1) -> Result:
    """Compare two traces phase by phase: time per rank and step, in medians over steps.

    The noise is three standard errors of the difference, from the medians of ten blocks of consecutive steps of each
    trace, since neighbouring steps are correlated. The variation between launches (other nodes, other neighbours) is
    in no single trace: compare three launches of each. Needs no comparison of clocks.

    Parameters
    ----------
    a, b : path or Trace
        The trace before the change and the one after it.
    skip : int
        Number of first steps to leave out.

    Returns
    -------
    dict
        Table ``phases``: ``kind class a b change ratio noise verdict``: ns, ns of b - a, b / a, ns; the verdict is
        slower, faster, same (less than the noise), new or gone, or unknown (fewer than 20 steps). ``step``, first, is
        the whole step, its other row ``(rest of step)``. ``bytes_a bytes_b``: sent per rank and step; ``steps_a
        steps_b``; ``different``: metadata of the runs that differ, each as [a, b].
    """
    sides = []
    for path in (a, b):  # one after the other, so that one trace is in memory at a time
        with opened(path) as frame:
            sides.append(_per_step(frame, skip))
    before, after = sides
    kinds = list(dict.fromkeys([*before["time"], *after["time"]]))
    classes = before["class"] | after["class"]
    rows = [
        {"kind": kind, "class": classes[kind], **_compared(before["time"].get(kind), after["time"].get(kind))}
        for kind in kinds
    ]
    rows = [*rows[:1], *sorted(rows[1:], key=lambda row: -abs(row["change"]))]
    return {
        "steps_a": before["steps"],
        "steps_b": after["steps"],
        "bytes_a": before["bytes"],
        "bytes_b": after["bytes"],
        "phases": tables.of_rows(rows),
        "different": _different(before["metadata"], after["metadata"]),
        "clock_uncertainty": None,
    }


def _per_step(frame: Frame, skip: int) -> Result:
    """Time (ns) per rank in each step, for each kind: the mean over the ranks that recorded the step."""
    table = step_table(frame)
    numbers, ranks = table["step"][skip:], table["ranks"][skip:]
    time: Table = {}
    classes = {"step": CLASS_NAMES[0]}
    if len(numbers):
        time["step"] = table["duration"][skip:].astype(np.float64)
        step, kind = frame.step[frame.pieces.event], frame.kind[frame.pieces.event]
        chosen = np.isin(step, numbers)
        code, (kinds,) = compact(kind[chosen])
        cell = code * len(numbers) + np.searchsorted(numbers, step[chosen])
        sums = np.bincount(cell, frame.pieces.own[chosen], len(kinds) * len(numbers))
        means = sums.reshape(len(kinds), len(numbers)) / ranks
        names = ["(rest of step)" if frame.kinds[code] == "step" else frame.kinds[code] for code in kinds]
        time |= dict(zip(names, means, strict=True))
        classes |= {name: CLASS_NAMES[frame.classes[code]] for name, code in zip(names, kinds, strict=True)}
    carried = np.isin(frame.step, numbers) & frame.carriers
    sent = float(frame.column("nbytes_sent")[carried].sum())
    return {"time": time, "class": classes, "steps": len(numbers), "bytes": sent / max(1, int(ranks.sum())),
            "metadata": frame.trace.attributes}  # fmt: skip


def _compared(a: np.ndarray | None, b: np.ndarray | None) -> Result:
    before, after = (0.0 if values is None else float(np.median(values)) for values in (a, b))
    noise = np.nan
    if a is None or b is None:
        verdict = "new" if a is None else "gone"
    elif min(len(a), len(b)) < 2 * BLOCKS:
        verdict = "unknown"
    else:
        noise = SURE * float(np.hypot(_error(a), _error(b)))
        verdict = "same" if abs(after - before) <= noise else "slower" if after > before else "faster"
    return {"a": before, "b": after, "change": after - before, "ratio": after / before if before else np.nan,
            "noise": noise, "verdict": verdict}  # fmt: skip


def _error(values: np.ndarray) -> float:
    """Standard error of the median, from the medians of blocks of consecutive steps."""
    medians = block_medians(values)
    return max(spread_of(medians), float(medians.std(ddof=1))) / np.sqrt(BLOCKS)


def _different(a: Result, b: Result) -> Result:
    names = ("n_ranks", "n_nodes", "command_line", "mpi_library", "mpi4py_version", "numpy_version", "cupy_version",
             "python_version", "creator", "git_revision", "complete")  # fmt: skip
    both = [{name: one.get(name) for name in names} | _named(one, "configuration") | _named(one, "environment")
             for one in (a, b)]  # fmt: skip
    return {name: [one.get(name) for one in both] for name in {**both[0], **both[1]}
            if both[0].get(name) != both[1].get(name)}  # fmt: skip


def _named(metadata: Result, group: str) -> Result:
    """The entries of one mapping in the metadata, with its name before theirs."""
    return {f"{group} {name}": value for name, value in metadata[group].items()}
