"""Pictures of docs/benchmarks.md from `make bench-cluster`.

    python tests/benchmarks/plot_cluster.py RESULTS.json FOLDER

RESULTS.json is what `make bench-cluster` writes (docs/results/cluster-2-cores.json).

cluster-steps.png      time of a step of each method, link rate by link rate
cluster-accuracy.png   test accuracy over the seconds of training
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from palette import colour

RATES = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s"}
EXACT = ("native", "ring", "halving_doubling", "auto")
MODEL = "ResNet-50"


def steps(figures, path):
    """Draw a panel per rate: a dot per method on a logarithmic axis, native first."""
    present = [rate for rate in RATES if f"cluster-steps-{rate}" in figures]
    figure, axes = pyplot.subplots(1, len(present), figsize=(4.2 * len(present), 4), layout="constrained",
                                   squeeze=False, sharey=True)
    for axis, rate in zip(axes[0], present, strict=True):
        rows = [row for row in figures[f"cluster-steps-{rate}"]["rows"] if row["model"] == MODEL]
        names = [f"{row['method']} ({'exact' if row['method'] in EXACT else 'lossy'})" for row in rows]
        times = [float(row["ms per step"]) for row in rows]
        axis.scatter(times, names, color=[colour(row["method"]) for row in rows], s=60, zorder=2)
        for name, time in zip(names, times, strict=True):
            axis.annotate(f"{time:,.0f}", (time, name), xytext=(7, 5), textcoords="offset points", fontsize=8)
        axis.set_xscale("log")
        axis.set_xlim(min(times) / 2, max(times) * 4)
        axis.set_title(f"links of {RATES[rate]}", loc="left", fontsize=10)
        axis.set_xlabel("ms per step, logarithmic")
        axis.grid(axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].invert_yaxis()
    figure.suptitle(f"Lossy schemes win on slow links; on fast ones only those that compute little do "
                    f"({MODEL}, four emulated hosts on two cores)", fontsize=11, x=0.01, ha="left")
    figure.savefig(path, dpi=130)


def accuracy(figures, path):
    """Draw a panel per rate: a line per scheme."""
    present = [rate for rate in RATES if f"cluster-accuracy-{rate}" in figures]
    figure, axes = pyplot.subplots(1, len(present), figsize=(4.6 * len(present), 3.5), layout="constrained",
                                   squeeze=False, sharey=True)
    for axis, rate in zip(axes[0], present, strict=True):
        for name, report in figures[f"cluster-accuracy-{rate}"]["raw"].items():
            per_step = report["seconds"]["steps"] / report["steps"]
            points = report["series"]
            axis.plot([point["step"] * per_step for point in points], [point["metric"] for point in points],
                      label=name, color=colour(name))
        axis.set_title(f"links of {RATES[rate]}", loc="left", fontsize=10)
        axis.set_xlabel("seconds of training steps")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("test accuracy")
    axes[0][-1].legend(frameon=False)
    figure.suptitle("A small CNN reaches 85 % no sooner with lossy steps (four emulated hosts)",
                    fontsize=11, x=0.01, ha="left")
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    found, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for kind, draw in (("steps", steps), ("accuracy", accuracy)):
        if any(name.startswith(f"cluster-{kind}-") for name in found):
            draw(found, folder / f"cluster-{kind}.png")
