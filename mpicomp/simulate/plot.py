"""Plot of the step time over the number of ranks, one line per algorithm or scheme."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .predict import Prediction


def plot(path: Path, found: Sequence[Prediction], title: str, suffix: str) -> None:
    """Draw ``found`` into the new file ``path``; dotted: exchanged beside the backward pass."""
    from matplotlib.figure import Figure  # without pyplot, which needs a window system

    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axes = figure.subplots()
    for number, what in enumerate(dict.fromkeys(one.what for one in found)):
        rows = sorted((one for one in found if one.what == what), key=lambda one: one.ranks)
        ranks, color = [one.ranks for one in rows], f"C{number % 10}"
        axes.plot(ranks, [1e3 * one.step for one in rows], "o-", markersize=4, color=color, label=what)
        axes.plot(ranks, [1e3 * one.overlapped for one in rows], ":", color=color)
    axes.axhline(1e3 * found[0].compute, color="0.6", linewidth=0.8, label="computing")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="ranks", ylabel="step, ms", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, format=suffix[1:], dpi=150)
