"""Pictures of experiments: metric against bits sent, memory norm, total error, likeness of memories.

`python tests/fidelity/pictures.py` draws all of docs/images anew from docs/results/fidelity.json; nothing is run.
"""

import json
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.insert(0, str(DOCS / "images"))

from palette import MUTED, NATIVE, SCALECOM, WIDTH, colour, save, style, titled  # noqa: E402

WINDOW = 15  # points of a running median


def draw(folder, raw):
    """Draw the experiments that have runs; ``raw``: scheme -> results of every seed, by experiment."""
    folder.mkdir(exist_ok=True)
    drawn = {"madelon": madelon, "gisette": gisette, "goals": networks, "low_pass": memories}
    with style():
        for name, function in drawn.items():
            if any(raw.get(name, {}).values()):
                save(function(raw[name]), folder / f"fidelity-{name.replace('_', '-')}.svg")


def madelon(raw):
    return convex(raw, "madelon: at 10 000 bits per worker a threshold is far ahead of top-1",
                  "lossy; logistic regression in one process with virtual workers")


def gisette(raw):
    return convex(raw, "Like gisette: a threshold comes nearer to the minimum than top-10 with the same bits",
                  "lossy but for dense; logistic regression on MNIST's 4 and 9 in one process with virtual workers")


def convex(raw, message, setting):
    """Gap against bits, memory norm and total error against steps: running medians, a line style per seed."""
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    gap, norm, error = figure.subplots(1, 3)
    for axes, x, y, xlabel, ylabel in ((gap, "bits", "gap", "bits per worker", "f(x) - f*"),
                                       (norm, "step", "memory_norm", "step", "memory norm"),
                                       (error, "step", "total_error", "step", "total error")):
        for name, results in raw.items():
            lines(axes, results, x, y, color=colour(name), label=name)
        axes.set_title(ylabel)
        axes.set_xlabel(xlabel)
        axes.set_yscale("log")
        axes.grid(linewidth=0.5)
    gap.set_xscale("log")
    gap.set_xlim(left=1e3)
    figure.legend(*gap.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    titled(figure, message, f"{setting}; running medians of {WINDOW} points; dashed: a second seed")
    return figure


def networks(raw):
    """A column per scheme: accuracy against bits with dense in grey, memory norm and total error against steps."""
    lossy = [name for name in raw if name != "dense"]
    figure = Figure(figsize=(WIDTH, 5.0), layout="constrained")
    rows = figure.subplots(3, len(lossy), sharey="row", sharex="row", squeeze=False)
    for column, name in zip(rows.T, lossy, strict=True):
        metric, norm, error = column
        lines(metric, raw.get("dense", ()), "bits", "accuracy", color=NATIVE)
        for axes, x, y in ((metric, "bits", "accuracy"), (norm, "step", "memory_norm"), (error, "step", "total_error")):
            lines(axes, raw[name], x, y, color=colour(name))
            axes.grid(linewidth=0.5)
        metric.set_title(name.replace(", ", ",\n"), fontsize=8)
        metric.set_xscale("log")
        metric.set_xlabel("bits per worker")
        norm.set_yscale("log")
        error.set_yscale("log")
        error.set_xlabel("step")
    for axes, label in zip(rows[:, 0], ("test accuracy", "memory norm", "total error"), strict=True):
        axes.set_ylabel(label)
    titled(figure, "Five lossy schemes end within a point of dense training (mean of two seeds)",
           "Fashion-MNIST, three epochs, one process with virtual workers; grey: dense; dashed: a second seed")
    return figure


def memories(raw):
    """A column per beta: cosine of two workers' memories, Hamming distance to a worker's own selection, accuracy."""
    split = {name: name.split(", ") for name in raw}
    betas = list(dict.fromkeys(beta for _, beta in split.values()))
    rates = list(dict.fromkeys(rate for rate, _ in split.values()))
    figure = Figure(figsize=(WIDTH, 5.0), layout="constrained")
    rows = figure.subplots(3, len(betas), sharey="row", sharex=True, squeeze=False)
    for name, (rate, beta) in split.items():
        color = (SCALECOM, MUTED)[rates.index(rate) % 2]
        for axes, y, part in zip(rows[:, betas.index(beta)], ("memory_cosine", "hamming", "accuracy"),
                                 ("measures", "measures", "curve"), strict=True):
            lines(axes, raw[name], "step", y, part, color=color, label=rate.replace("lr", "learning rate"))
            axes.grid(linewidth=0.5)
        rows[0, betas.index(beta)].set_title(beta)
        rows[2, betas.index(beta)].set_xlabel("step")
    for axes, label in zip(rows[:, 0], ("cosine of\ntwo memories", "Hamming\ndistance", "test\naccuracy"), strict=True):
        axes.set_ylabel(label)
    handles = {label: line for axes in rows[0] for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2)
    titled(figure, "The memories of two workers grow less alike in the first epoch, with every beta",
           "ScaleCom, lossy; Fashion-MNIST, one process with virtual workers; dashed: a second seed")
    return figure


def lines(axes, results, x, y, part="curve", *, color, label=None):
    """One line per run: solid for the first seed, dashed and thinner for further ones."""
    for number, one in enumerate(results):
        if any(one[part].get(y, ())):
            axes.plot(one[part][x], running_median(one[part][y]), color=color, linewidth=1.6 - 0.7 * (number > 0),
                      linestyle="dashed" if number else "solid", label=None if number else label)


def running_median(values):
    """Medians of ``WINDOW`` neighbouring points, fewer at the ends; short curves as they are."""
    values = np.asarray([np.nan if value is None else value for value in values], float)
    if len(values) < 4 * WINDOW:
        return values
    half = WINDOW // 2
    return np.array([np.nanmedian(values[max(0, at - half) : at + half + 1]) for at in range(len(values))])


if __name__ == "__main__":
    draw(DOCS / "images", json.loads((DOCS / "results" / "fidelity.json").read_text()))
