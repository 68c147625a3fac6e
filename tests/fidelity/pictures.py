"""Pictures of experiments: metric against bits sent, memory norm, total error, likeness of memories.

`python tests/fidelity/pictures.py` draws all of docs/images anew from docs/results/fidelity.json; nothing is run.
"""

import json
from pathlib import Path

from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parents[2] / "docs"
COLORS = ("#1f6feb", "#d1242f", "#1a7f37", "#8a94a6", "#9a6700", "#8250df", "#bf3989")


def draw(folder, raw):
    """The pictures of those experiments that have runs; ``raw``: scheme -> results of every seed, by experiment."""
    folder.mkdir(exist_ok=True)
    drawn = {"madelon": convex, "gisette": convex, "goals": networks, "low_pass": memories}
    for name, function in drawn.items():
        if any(raw.get(name, {}).values()):
            figure = Figure(figsize=(11, 3.8), layout="constrained")
            function(figure, raw[name])
            names_below(figure)
            figure.savefig(folder / f"fidelity-{name.replace('_', '-')}.png", dpi=110)


def convex(figure, raw):
    """Gap against bits, memory norm and total error against steps."""
    gap, norm, error = figure.subplots(1, 3)
    lines(gap, raw, "bits", "gap", "bits per worker", "f(x) - f*")
    lines(norm, raw, "step", "memory_norm", "step", "memory norm")
    lines(error, raw, "step", "total_error", "step", "total error")
    gap.set_xscale("log")
    gap.set_xlim(left=1e3)
    for axes in (gap, norm, error):
        axes.set_yscale("log")


def networks(figure, raw):
    """Accuracy against bits, memory norm and total error against steps."""
    metric, norm, error = figure.subplots(1, 3)
    lines(metric, raw, "bits", "accuracy", "bits per worker", "test accuracy")
    lines(norm, raw, "step", "memory_norm", "step", "memory norm")
    lines(error, raw, "step", "total_error", "step", "total error")
    metric.set_xscale("log")
    error.set_yscale("log")


def memories(figure, raw):
    """Cosine of two workers' memories, Hamming distance to a worker's own selection, accuracy."""
    cosine, hamming, metric = figure.subplots(1, 3)
    lines(cosine, raw, "step", "memory_cosine", "step", "cosine of two memories", "measures")
    lines(hamming, raw, "step", "hamming", "step", "Hamming distance", "measures")
    lines(metric, raw, "step", "accuracy", "step", "test accuracy")


def lines(axes, raw, x, y, xlabel, ylabel, part="curve"):
    """One line a run: a colour a scheme, thinner for every further seed."""
    for color, (name, results) in zip(COLORS, raw.items(), strict=False):
        for number, one in enumerate(results):
            if any(one[part].get(y, ())):
                axes.plot(one[part][x], one[part][y], color=color, lw=1.4 / (number + 1),
                          label=name if number == 0 else None)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)


def names_below(figure):
    """One legend under all panels: inside one of them it would cover lines."""
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8,
                  title="thin lines: a second seed", title_fontsize=8)


if __name__ == "__main__":
    draw(DOCS / "images", json.loads((DOCS / "results" / "fidelity.json").read_text()))
