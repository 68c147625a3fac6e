"""Bandwidth and time over size, one line an implementation."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument, MissingExtra
from .rows import differing, label

SUFFIXES = (".png", ".svg", ".pdf")
MARKS = "os^vDP*X<>"


def check_plot(path: str | Path) -> str:
    """The suffix of the picture; raises what would keep it from being drawn, before hours of measuring."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidArgument(f"a picture's name ends in one of {', '.join(SUFFIXES)}, got {str(path)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("pictures need matplotlib: pip install 'mpicomp[plot]'")
    return suffix


def plot(path: Path, document: dict[str, Any], suffix: str) -> None:
    """Draw ``document`` into the new file ``path``.

    Left busbw, or algbw where a row has no busbw (dotted: a scheme, one rank); right the time, both axes logarithmic;
    a band spans the median's confidence interval, or the launches.
    """
    from matplotlib.figure import Figure  # without pyplot: no window system is asked for

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


def _lines(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each line, by its name."""
    differ = differing(rows)
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["nbytes"]):
        lines.setdefault(label(row, differ), []).append(row)
    return lines


def _line(left: Any, right: Any, index: int, name: str, rows: list[dict[str, Any]]) -> None:
    style = {"color": f"C{index % 10}", "marker": MARKS[index // 10 % len(MARKS)], "markersize": 4}
    sizes = [row["nbytes"] for row in rows]
    bus = all(row["busbw_gbs"] is not None for row in rows)
    left.plot(sizes, [row["busbw_gbs" if bus else "algbw_gbs"] for row in rows], "-" if bus else ":", **style)
    right.plot(sizes, [row["t_med_us"] for row in rows], label=name, **style)
    ends = [(row["t_low_us"] or row["ci_low_us"] or row["t_med_us"], row["t_high_us"] or row["ci_high_us"]
             or row["t_med_us"]) for row in rows]  # fmt: skip
    right.fill_between(sizes, *zip(*ends, strict=True), color=style["color"], alpha=0.2, linewidth=0)


def _title(document: dict[str, Any]) -> str:
    rows = document["rows"]
    what = " ".join(dict.fromkeys(row["collective"] for row in rows))
    ranks = " ".join(str(n) for n in dict.fromkeys(row["n_ranks"] for row in rows))
    library = document.get("mpi", {}).get("name", "")
    launches = max((row["launches"] or 1 for row in rows), default=1)
    many = f", {launches} launches" if launches > 1 else ""
    dtypes = " ".join(dict.fromkeys(row["dtype"] for row in rows))
    return f"{what}, {dtypes}, {ranks} ranks{f', {library}' if library else ''}{many}"
