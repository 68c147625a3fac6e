"""Pictures of docs/benchmarks.md from `make bench-cluster`.

    python tests/benchmarks/plot_cluster.py RESULTS.json FOLDER

cluster-steps.png      a step of each method, link rate by link rate
cluster-accuracy.png   test accuracy over the seconds of training
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

RATES = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s"}
NATIVE, DENSE, COMPRESSED = "#8a94a6", "#1f6feb", "#2da44e"
SHARED = ("native", "ring", "halving_doubling", "auto")


def steps(figures, path):
    """A panel a rate; bars on a logarithmic scale, native first."""
    present = [rate for rate in RATES if f"cluster-steps-{rate}" in figures]
    figure, axes = pyplot.subplots(1, len(present), figsize=(4.2 * len(present), 3.6), layout="constrained",
                                   squeeze=False, sharey=True)
    for axis, rate in zip(axes[0], present, strict=True):
        rows = figures[f"cluster-steps-{rate}"]["rows"]
        model = rows[-1]["model"]
        rows = [row for row in rows if row["model"] == model]
        names, times = [row["method"] for row in rows], [float(row["ms a step"]) for row in rows]
        colours = [NATIVE if name == "native" else DENSE if name in SHARED else COMPRESSED for name in names]
        bars = axis.barh(names, times, color=colours)
        axis.bar_label(bars, [f" {value:,.0f}" for value in times], fontsize=8)
        axis.set_xscale("log")
        axis.set_xlim(min(times) / 2, max(times) * 4)
        axis.set_title(f"{model}, {RATES[rate]}", loc="left", fontsize=10)
        axis.set_xlabel("milliseconds a step")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].invert_yaxis()
    figure.savefig(path, dpi=150)


def accuracy(figures, path):
    """A panel a rate; a line a scheme."""
    present = [rate for rate in RATES if f"cluster-accuracy-{rate}" in figures]
    figure, axes = pyplot.subplots(1, len(present), figsize=(4.6 * len(present), 3.2), layout="constrained",
                                   squeeze=False, sharey=True)
    for axis, rate in zip(axes[0], present, strict=True):
        for name, report in figures[f"cluster-accuracy-{rate}"]["raw"].items():
            a_step = report["seconds"]["steps"] / report["steps"]
            points = report["series"]
            axis.plot([point["step"] * a_step for point in points], [point["metric"] for point in points], label=name)
        axis.set_title(RATES[rate], loc="left", fontsize=10)
        axis.set_xlabel("seconds of training steps")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("test accuracy")
    axes[0][-1].legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    found, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for kind, draw in (("steps", steps), ("accuracy", accuracy)):
        if any(name.startswith(f"cluster-{kind}-") for name in found):
            draw(found, folder / f"cluster-{kind}.png")
