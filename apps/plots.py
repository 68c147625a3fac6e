"""The course of a run as a picture: losses, metric, density and memory norm over the steps."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from mpicomp.errors import InvalidArgument, MissingExtra

from .loop_settings import Report

SUFFIXES = (".png", ".svg", ".pdf")


def check(path: str | Path) -> str:
    """The kind of picture; raises what would keep it from being drawn, before hours of training."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidArgument(f"a picture's name ends in one of {', '.join(SUFFIXES)}, got {str(path)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("pictures need matplotlib: pip install 'mpicomp[plot]'")
    return suffix[1:]


def draw(path: Path, report: Report, kind: str) -> None:
    """Draw a run into the new file ``path``."""
    from matplotlib.figure import Figure  # without pyplot: no window system is asked for

    figure = Figure(figsize=(10, 6.5), layout="constrained")
    panels = figure.subplots(2, 2)
    steps = [point.step for point in report.series]
    lines = (("loss", ("train_loss", "test_loss")), (report.metric, ("metric",)),
             ("density", ("density",)), ("memory norm", ("memory_norm",)))  # fmt: skip
    for axes, (title, names) in zip(panels.flat, lines, strict=True):
        for name in names:
            axes.plot(steps, [getattr(point, name) for point in report.series], marker=".", label=name)
        axes.set(xlabel="step", ylabel=title)
        axes.grid(alpha=0.3)
        if len(names) > 1:
            axes.legend(frameon=False)
    if all(point.density > 0 for point in report.series):
        panels.flat[2].set_yscale("log")
    settings = report.settings
    figure.suptitle(f"{report.app}, {settings.scheme}, {settings.workers} workers, seed {settings.seed}")
    figure.savefig(path, format=kind, dpi=120)
