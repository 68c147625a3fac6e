"""Pictures of a report as inline SVG in the page's text colour, for light, dark and paper."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .analyses import plots
from .analyses.frame import CLASS_NAMES
from .tables import Result, Table

if TYPE_CHECKING:
    from .analyses.plots import Axes, Figure

_INK = "#010203"  # a colour that no line has, replaced by the page's text colour
_STYLE = {
    "text.color": _INK, "axes.edgecolor": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "svg.fonttype": "none", "font.size": 10, "text.parse_math": False, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.alpha": 0.25, "grid.color": _INK,
    "axes.unicode_minus": False, "savefig.dpi": 150, "lines.linewidth": 1.2,
}  # fmt: skip
_MS = 1e6
_WIDTH = 8  # inches
# Blue, orange, green, and grey for no work: distinct on white, on black and for colour-blind readers.
_CLASS_COLOURS = {"compute": "#1f77b4", "compression": "#ff7f0e", "communication": "#2ca02c", "other": "#8c6bb1",
                  "unrecorded": "#999999"}  # fmt: skip
_MOST_BARS = 64  # ranks drawn as bars; more are drawn as areas
_MOST_AREAS = 512  # ranks drawn as areas; more are averaged
_LARGEST = 1e100  # of a metric; matplotlib's axes overflow above 1e300
_MOST_POINTS = 2000  # per curve; more would make a page of megabytes


class Picture(NamedTuple):
    caption: str
    draw: Callable[[Figure, Axes], None]
    height: float = 2.8  # inches


def breakdown(result: Result) -> Picture:
    """The result of ``mpicomp.trace.breakdown``."""
    ranks = result["ranks"]
    names = [name for name in (*CLASS_NAMES[1:], "other", "unrecorded") if ranks[name].any()]

    def draw(figure: Figure, axes: Axes) -> None:
        starts = np.arange(0, len(ranks["rank"]), -(-len(ranks["rank"]) // _MOST_AREAS))
        span = np.maximum(np.add.reduceat(ranks["span"], starts), 1)
        rank, share = ranks["rank"][starts], {name: 100 * np.add.reduceat(ranks[name], starts) / span for name in names}
        colours = [_CLASS_COLOURS[name] for name in names]
        if len(rank) > _MOST_BARS:
            axes.stackplot(rank, *share.values(), labels=names, colors=colours, step="mid", linewidth=0)
        else:
            base = np.zeros(len(rank))
            for name, colour in zip(names, colours, strict=True):
                axes.bar(rank, share[name], bottom=base, label=name, color=colour)
                base = base + share[name]
        axes.set(xlabel="rank", ylabel="share of its time (%)", ylim=(0, 100))
        axes.locator_params("x", integer=True)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)

    return Picture("Share of each class in the time of each rank", draw)


def course(steps: Table, spikes: Result) -> Picture:
    """The tables of ``mpicomp.trace.steps`` and the result of ``spikes``."""

    def draw(figure: Figure, axes: Axes) -> None:
        part = -(-len(steps["step"]) // _MOST_POINTS)
        starts = np.arange(0, len(steps["step"]), part)
        longest = np.maximum.reduceat(steps["duration"], starts) / _MS
        axes.plot(steps["step"][starts], longest, marker="." if len(starts) < 50 else None)
        if spikes["count"]:
            at = spikes["spikes"]
            axes.plot(at["step"][:100], at["duration"][:100] / _MS, "o", markersize=4, color="#d62728", label="spike")
            axes.legend(frameon=False)
        axes.set(xlabel="step", ylabel="duration (ms)", ylim=(0, 1.05 * longest.max() or 1))

    return Picture("Duration of the steps (slowest rank)", draw)


def lateness(found: Result) -> Picture:
    """The result of ``mpicomp.trace.stragglers``."""
    table = found["ranks"]

    def draw(figure: Figure, axes: Axes) -> None:
        rank, late = table["rank"], table["lateness"] / _MS
        doubt = np.maximum(table["uncertainty"], table["noise"]) / _MS
        axes.fill_between(rank, -doubt, doubt, alpha=0.25, color="#999999", step="mid", label="uncertainty")
        axes.vlines(rank, 0, late, linewidth=max(1.0, 300 / len(rank)) ** 0.5)
        for name, chosen, colour in (("rank", ~table["significant"], "C0"), ("late", table["significant"], "#d62728")):
            axes.plot(rank[chosen], late[chosen], "o", markersize=3, color=colour, label=name if chosen.any() else None)
        axes.set(xlabel="rank", ylabel="median lateness (ms)")
        axes.locator_params("x", integer=True)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)

    return Picture("Lateness of each rank at the communications, against the median rank", draw)


def heatmap(cells: Result) -> Picture:
    caption = "Duration of each rank's steps"
    return Picture(caption, lambda figure, axes: plots.draw("heatmap", figure, axes, cells), 3.4)


def gantt(step: Result) -> Picture:
    """The result of ``mpicomp.trace.timeline``."""
    caption = f"The median step, {step['step']}, rank by rank"
    height = min(10.0, 1.6 + 0.2 * len(step["ranks"]))
    return Picture(caption, lambda figure, axes: plots.draw("timeline", figure, axes, step), height)


def bandwidth(measured: Result) -> Picture:
    """The result of ``mpicomp.trace.bandwidth``."""
    return Picture("Bus bandwidth of dense all-reduces by size",
                   lambda figure, axes: plots.draw("bandwidth", figure, axes, measured), 3.4)  # fmt: skip


def metric(name: str, step: np.ndarray, values: np.ndarray) -> Picture | None:
    """A metric over the steps; None if it was never finite, or too large for axes."""
    known = np.abs(values) < _LARGEST  # False for NaN
    if not known.any():
        return None
    chosen = np.flatnonzero(known)[:: -(-int(known.sum()) // _MOST_POINTS)]

    def draw(figure: Figure, axes: Axes) -> None:
        axes.plot(step[chosen], values[chosen], marker="." if len(chosen) < 50 else None)
        axes.set(xlabel="step", ylabel=name)

    return Picture(f"Metric {name}: mean over ranks", draw)


def svg(prefix: str, picture: Picture) -> str:
    """The figure as SVG; its identifiers get a prefix, since several figures share a page."""
    matplotlib, figure = plots.load_matplotlib()
    text = io.StringIO()
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_STYLE, "svg.hashsalt": prefix, "backend": "svg"}):
        drawn = figure.Figure(figsize=(_WIDTH, picture.height), layout="constrained")
        picture.draw(drawn, drawn.subplots())
        drawn.savefig(text, format="svg", transparent=True)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
