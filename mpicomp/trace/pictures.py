"""Pictures of a report as inline SVG that takes its ink from the page, so that it suits light, dark and paper."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

from ..errors import MissingExtra

_INK = "#010203"  # a colour that no line has: it becomes the page's own
_STYLE = {
    "text.color": _INK, "axes.edgecolor": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "svg.fonttype": "none", "font.size": 10, "text.parse_math": False, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "grid.color": _INK, "figure.figsize": (8, 2.8),
    "axes.unicode_minus": False,
}  # fmt: skip
_MS = 1e6


def pictures(report: dict) -> list[tuple[str, str]]:
    """(Caption, SVG) of everything in a report that can be seen better than read."""
    drawn: list[tuple[str, Callable[[Any], None]]] = []
    if report["phases"]:
        drawn.append(("Time by phase, over all ranks", lambda axes: _phases(axes, report["phases"])))
        if any(row["nbytes_sent"] for row in report["phases"]):
            drawn.append(("Bytes by phase, over all ranks", lambda axes: _bytes(axes, report["phases"])))
    if report["imbalance"]["kind"]:
        drawn.append(("Lateness by rank: how long after the median rank it comes to the collectives",
                      lambda axes: _lateness(axes, report["imbalance"])))  # fmt: skip
    for name, course in report["metrics"].items():
        if any(value is not None for value in course["values"]):
            drawn.append((f"Metric {name}: mean over ranks", lambda axes, course=course: _metric(axes, course)))
    return [(caption, _svg(f"p{number}", draw)) for number, (caption, draw) in enumerate(drawn)]


def _phases(axes: Any, phases: list[dict]) -> None:
    axes.barh([row["kind"] for row in phases], [row["total"] / _MS for row in phases])
    axes.invert_yaxis()
    axes.set_xlabel("total time (ms)")


def _bytes(axes: Any, phases: list[dict]) -> None:
    kinds = [row["kind"] for row in phases if row["nbytes_sent"]]
    for offset, name, label in ((-0.2, "nbytes_sent", "sent"), (0.2, "nbytes_recv", "received")):
        values = [row[name] / 1e6 for row in phases if row["nbytes_sent"]]
        axes.barh([index + offset for index in range(len(kinds))], values, height=0.4, label=label)
    axes.set_yticks(range(len(kinds)), kinds)
    axes.invert_yaxis()
    axes.set_xlabel("MB")
    axes.legend(frameon=False)


def _lateness(axes: Any, imbalance: dict) -> None:
    late = [(rank, value / _MS) for rank, value in enumerate(imbalance["lateness"]) if value is not None]
    axes.vlines([rank for rank, _ in late], 0, [value for _, value in late], linewidth=max(1, 300 / len(late)) ** 0.5)
    axes.plot([rank for rank, _ in late], [value for _, value in late], "o", markersize=3)
    axes.axhspan(-imbalance["clock_uncertainty"] / _MS, imbalance["clock_uncertainty"] / _MS, alpha=0.2)
    axes.set_xlabel("rank")
    axes.set_ylabel("median lateness (ms)")


def _metric(axes: Any, course: dict) -> None:
    points = [(x, y) for x, y in zip(course["steps"], course["values"], strict=True) if y is not None]
    axes.plot(*zip(*points, strict=True), marker="." if len(points) < 50 else None)
    axes.set_xlabel("step")


def _svg(prefix: str, draw: Callable[[Any], None]) -> str:
    """One figure; its identifiers get a prefix, since several figures share a page."""
    matplotlib, figure = _matplotlib()
    text = io.StringIO()
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_STYLE, "svg.hashsalt": prefix, "backend": "svg"}):
        picture = figure.Figure(layout="constrained")
        draw(picture.subplots())
        picture.savefig(text, format="svg", transparent=True)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)


def _matplotlib() -> tuple[Any, Any]:
    try:
        import matplotlib
        from matplotlib import figure
    except ImportError as error:
        raise MissingExtra("pictures need matplotlib; install it with: pip install 'mpicomp[plot]'") from error
    return matplotlib, figure
