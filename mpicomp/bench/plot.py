"""Picture of bandwidth and time over size, one line per implementation."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidArgument, MissingExtra
from .rows import differing, interval, label, ranks_of
from .schema import Document, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg", ".pdf")
MARKS = "os^vDP*X<>"


def check_plot(path: str | Path) -> str:
    """The suffix of the picture; raises, before hours of measuring, if it cannot be drawn."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidArgument(f"a picture's name ends in one of {', '.join(SUFFIXES)}, got {str(path)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("pictures need matplotlib: pip install 'mpicomp[plot]'")
    return suffix


def plot(path: Path, document: Document, suffix: str) -> None:
    """Draw ``document`` into the new file ``path``.

    Left busbw, or algbw if a row has no busbw (dotted: a scheme, one rank); right the time, both axes logarithmic;
    a band spans the median's confidence interval, or the launches.
    """
    from matplotlib.figure import Figure  # without pyplot, which looks for a window system

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    lines = _lines(document["rows"])
    for index, (name, rows) in enumerate(lines.items()):
        _line(left, right, index, name, rows)
    for axes, what in ((left, "busbw (dotted: algbw), GB/s"), (right, "time, us")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set(xlabel="size, bytes", ylabel=what)
        axes.grid(alpha=0.3)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
    figure.suptitle(_title(document))
    figure.savefig(path, format=suffix[1:], dpi=150)


def _lines(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of each line, by its name."""
    differ = differing(rows)
    lines: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["nbytes"]):
        lines.setdefault(label(row, differ), []).append(row)
    return lines


def _line(left: Axes, right: Axes, index: int, name: str, rows: list[Row]) -> None:
    color, marker = f"C{index % 10}", MARKS[index // 10 % len(MARKS)]
    sizes = [row["nbytes"] for row in rows]
    buses = [row["busbw_gbs"] for row in rows if row["busbw_gbs"] is not None]
    whole = len(buses) == len(rows)
    rates = buses if whole else [row["algbw_gbs"] for row in rows]
    left.plot(sizes, rates, "-" if whole else ":", color=color, marker=marker, markersize=4)
    right.plot(sizes, [row["t_med_us"] for row in rows], label=name, color=color, marker=marker, markersize=4)
    low, high = ([interval(row)[end] or row["t_med_us"] for row in rows] for end in (0, 1))
    right.fill_between(sizes, low, high, color=color, alpha=0.2, linewidth=0)


def _title(document: Document) -> str:
    rows = document["rows"]
    what = " ".join(dict.fromkeys(row["collective"] for row in rows))
    library = document.get("mpi", {}).get("name", "")
    launches = max((row["launches"] or 1 for row in rows), default=1)
    many = f", {launches} launches" if launches > 1 else ""
    dtypes = " ".join(dict.fromkeys(row["dtype"] for row in rows))
    return f"{what}, {dtypes}, {ranks_of(rows)}{f', {library}' if library else ''}{many}"
