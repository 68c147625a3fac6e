"""Pictures of analyses, drawn by matplotlib (the extra ``plot``) as PNG, SVG or PDF."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from ..._util.atomic_files import check_output, write_bytes
from ...errors import InvalidArgument, MissingExtra
from ..tables import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure

_FORMATS = (".png", ".svg", ".pdf")


def check(path: Path, force: bool, inputs: Iterable[Path] = ()) -> None:
    """Raise, before the work, the error that ``save`` would raise, or that would destroy one of ``inputs``."""
    if path.suffix.lower() not in _FORMATS:
        raise InvalidArgument(f"a picture's name must end in {', '.join(_FORMATS)}, got {path.name}")
    check_output(path.absolute(), force, inputs)
    load_matplotlib()


def save(name: str, result: Result, path: Path, force: bool = False) -> None:
    """Draw the result of ``mpicomp.trace.NAME`` into the file ``path``."""
    check(path, force)
    drawn, picture = load_matplotlib()[1].Figure(figsize=(10, 5), layout="constrained"), io.BytesIO()
    draw(name, drawn, drawn.subplots(), result)
    drawn.savefig(picture, format=path.suffix[1:].lower(), dpi=120)
    write_bytes(path.absolute(), force, picture.getvalue())


def draw(name: str, figure: Figure, axes: Axes, result: Result) -> None:
    """Draw the result of ``mpicomp.trace.NAME`` on given axes."""
    _DRAW[name](figure, axes, result)


def load_matplotlib() -> tuple[ModuleType, ModuleType]:
    """matplotlib and its module of figures; pyplot, which looks for a window system, is not needed."""
    try:
        import matplotlib
        from matplotlib import figure
    except ImportError as error:
        raise MissingExtra("pictures need matplotlib; install it with: pip install 'mpicomp[plot]'") from error
    return matplotlib, figure


def _heatmap(figure: Figure, axes: Axes, result: Result) -> None:
    scale, unit = (1e-6, "ms") if result["units"] == "ns" else (1.0, "byte")
    _image(figure, axes, result["matrix"] * scale, f"{result['value']} ({unit})", result["rank"], result["step"])
    axes.set(xlabel="step", ylabel="rank")


def _matrix(figure: Figure, axes: Axes, result: Result) -> None:
    places = np.arange(len(result["matrix"]))
    _image(figure, axes, result["matrix"], "bytes", places, places)
    axes.set(xlabel=f"to {result['by']}", ylabel=f"from {result['by']}")


def _image(figure: Figure, axes: Axes, values: np.ndarray, label: str, rows: np.ndarray, columns: np.ndarray) -> None:
    axes.grid(False)
    image = axes.imshow(values, aspect="auto", interpolation="nearest", cmap="viridis")
    figure.colorbar(image, label=label)
    for ticks, names in ((axes.set_yticks, rows), (axes.set_xticks, columns)):
        shown = np.unique(np.linspace(0, max(0, len(names) - 1), min(len(names), 9)).astype(int))
        ticks(shown, [str(name) for name in names[shown]])


def _timeline(figure: Figure, axes: Axes, result: Result) -> None:
    from matplotlib import collections  # all bars of a kind in one: single patches take milliseconds each

    spans = result["spans"]
    row = np.searchsorted(result["ranks"], spans["rank"])
    kinds = list(dict.fromkeys(spans["kind"].tolist()))
    for number, kind in enumerate(kinds):
        chosen = spans["kind"] == kind
        colour, alpha = ("0.6", 0.3) if kind == "step" else (f"C{number % 10}", 1)
        bars = list(_bars(row[chosen], spans["begin"][chosen] * 1e-6, spans["end"][chosen] * 1e-6))
        axes.add_collection(collections.PolyCollection(bars, facecolors=colour, alpha=alpha, linewidths=0, label=kind))
    axes.autoscale_view()
    axes.set_xlim(left=0)
    axes.grid(False)
    axes.set(xlabel=f"ms of step {result['step']}", ylabel="rank")
    axes.set_yticks(range(len(result["ranks"])), [str(rank) for rank in result["ranks"]])
    axes.invert_yaxis()
    if kinds:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _bars(row: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Array (bars, 4, 2) of corners; a bar is 0.8 rows high."""
    low, high = row - 0.4, row + 0.4
    return np.stack([np.stack([begin, end, end, begin], 1), np.stack([low, low, high, high], 1)], 2)


def _bandwidth(figure: Figure, axes: Axes, result: Result) -> None:
    table = result["bandwidth"]
    for algo in dict.fromkeys(table["algo"].tolist()):
        rows = table["algo"] == algo
        axes.plot(table["nbytes"][rows], table["median"][rows], marker="o", label=algo)
        axes.fill_between(table["nbytes"][rows], table["p10"][rows], table["p90"][rows], alpha=0.2)
    axes.set(xlabel="bytes", ylabel="busbw (GB/s), median and 10th to 90th percentile", xscale="log", yscale="log")
    if len(table["algo"]):
        axes.legend(frameon=False)


_DRAW = {"heatmap": _heatmap, "matrix": _matrix, "timeline": _timeline, "bandwidth": _bandwidth}
