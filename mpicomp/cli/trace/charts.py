"""Pictures of analyses, drawn in characters."""

from __future__ import annotations

import string

import numpy as np
from rich.console import Console
from rich.text import Text

from ...trace.tables import Result
from ...trace.units import duration, nbytes
from ...trace.views import Fact
from .console import show_clocks, show_facts

DRAWN = ("heatmap", "matrix", "timeline")
_SHADES = {True: " ░▒▓█", False: " .:-=+*#%@"}  # with and without UTF-8
_MOST_ROWS, _LABEL = 64, 8
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def heatmap(console: Console, result: Result) -> None:
    values = result["matrix"]
    show = nbytes if result["units"] == "byte" else duration
    if not np.isfinite(values).any():
        show_facts(console, [Fact("heatmap", f"no {result['value']} was recorded in a step")])
        return
    small = _binned(values, min(len(values), _MOST_ROWS), min(values.shape[1], max(8, console.width - _LABEL - 2)))
    low, high = float(np.nanmin(small)), float(np.nanmax(small))
    show_facts(console, [Fact("value", f"{result['value']} by rank (down) and step (across)"),
                         Fact("shades", f"from {show(low)} to {show(high)}; ? nothing recorded")])
    _show_shades(console, small, low, high, result["rank"])
    first, last = f"{result['step'][0]}", f"{result['step'][-1]}"
    last = last.rjust(max(len(last) + 1, small.shape[1] - len(first))) if last != first else ""
    console.print(Text(" " * (_LABEL + 2) + first + last))
    show_clocks(console, result["clock_uncertainty"])


def matrix(console: Console, result: Result) -> None:
    values, total = result["matrix"], result["attributed"] + result["unattributed"]
    known = nbytes(result["attributed"]) if result["attributed"] else "none"
    facts = [Fact("bytes", f"{nbytes(total)} sent, {known} of them by schedules with known receivers")]
    if result["between_nodes"] is not None:
        facts.append(Fact("between nodes", f"{result['between_nodes']:.1%} of these"))
    if values.any():
        between = f"from {result['by']} (down) to {result['by']} (across)"
        facts.append(Fact("shades", f"bytes {between}, up to {nbytes(float(values.max()))}"))
    show_facts(console, facts)
    if not values.any():
        return
    edge = min(len(values), _MOST_ROWS, max(8, console.width - _LABEL - 2))
    small = _binned(values, edge, edge)
    _show_shades(console, small, 0.0, float(small.max()), np.arange(len(values)))
    show_clocks(console, result["clock_uncertainty"])


def _binned(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """Average the array down to ``height`` rows and ``width`` columns; NaN is ignored."""
    row = np.arange(values.shape[0]) * height // values.shape[0]
    column = np.arange(values.shape[1]) * width // values.shape[1]
    cell = (row[:, None] * width + column).ravel()
    known = ~np.isnan(values).ravel()
    with np.errstate(invalid="ignore"):
        sums = np.bincount(cell[known], values.ravel()[known], height * width)
        return (sums / np.bincount(cell[known], minlength=height * width)).reshape(height, width)


def _show_shades(console: Console, values: np.ndarray, low: float, high: float, names: np.ndarray) -> None:
    """Print an array in shades; the label of a row is the first of the ``names`` averaged in it."""
    shades = _SHADES[console.encoding.startswith("utf")]
    level = np.nan_to_num((values - low) / (high - low or 1.0)) * (len(shades) - 1)
    letters = np.array(list(shades))[np.rint(level).astype(int).clip(0, len(shades) - 1)]
    first = names[-(-np.arange(len(values)) * len(names) // len(values))]
    console.print()
    for name, row in zip(first, np.where(np.isnan(values), "?", letters), strict=True):
        console.print(Text(f"{name:>{_LABEL}}  {''.join(row)}"), soft_wrap=True)


def timeline(console: Console, result: Result) -> None:
    from ...trace.analyses.timeline import paint

    spans, width = result["spans"], max(16, console.width - _LABEL - 3)
    lasted, column = duration(result["duration"]), duration(result["duration"] / width)
    facts = [Fact("step", f"{result['step']}: {lasted} from the first begin to the last end, {column} per column")]
    kinds = [kind for kind in dict.fromkeys(spans["kind"].tolist()) if kind != "step"]
    marks = _marks(kinds) | {"step": "."}
    styles = {kind: _COLOURS[number % len(_COLOURS)] for number, kind in enumerate(kinds)}
    legend = ", ".join(f"{marks[kind]} {kind}" for kind in kinds)
    facts.append(Fact("legend", (f"{legend}, " if legend else "") + ". in the step, nothing recorded"))
    show_facts(console, facts)
    console.print()
    for rank, cells in zip(result["ranks"], paint(spans, result["ranks"], result["duration"], width), strict=True):
        line = Text(f"{rank:>{_LABEL}} |")
        for cell in cells:
            kind = spans["kind"][cell] if cell >= 0 else ""
            line.append(marks.get(kind, " "), style=styles.get(kind, ""))
        console.print(line, soft_wrap=True)
    show_clocks(console, result["clock_uncertainty"])


def _marks(kinds: list[str]) -> dict[str, str]:
    """A letter for each kind, one of its own if that is free."""
    marks: dict[str, str] = {}
    for kind in kinds:
        own = kind.lower() + kind.upper() + string.ascii_letters + string.digits
        free = (letter for letter in own if letter.isalnum() and letter not in marks.values())
        marks[kind] = next(free, "*")
    return marks
