"""The course of a run as a picture: losses, metric, density and memory norm over the steps."""

from __future__ import annotations

from pathlib import Path

from mpicomp._util.plurals import count
from mpicomp.bench.plot import check_plot as check

from .loop_settings import Report
from .settings import known

__all__ = ["check", "draw"]


def draw(path: Path, report: Report, suffix: str) -> None:
    """Draw a run into the new file ``path``; ``suffix`` is what ``check`` gave."""
    from matplotlib.figure import Figure  # without pyplot, which would look for a window system

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
    densities = {point.density for point in report.series}
    if len(densities) > 1 and min(densities) > 0:  # a scale of one value has no width
        panels.flat[2].set_yscale("log")
    settings, workers = report.settings, count(known(report.settings.workers), "worker")
    figure.suptitle(f"{report.app}, {settings.scheme}, {workers}, seed {settings.seed}")
    figure.savefig(path, format=suffix[1:], dpi=120)
