"""The picture of the README from the figures: `python tests/benchmarks/plot_figures.py FIGURES.json PICTURE.png`."""

import json
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

RATES = {"1gbit": "1 Gbit/s", "100mbit": "100 Mbit/s"}
BARS = (("MPI_Allreduce", "native ms", "#8a94a6"), ("ScaleCom step", "step ms", "#1f6feb"))


def draw(figures, path):
    """One row of bars a link rate: MPI's all-reduce and the ScaleCom step."""
    rows = figures["scalecom-hosts"]["rows"]
    figure, axes = pyplot.subplots(len(rows), 1, figsize=(8, 3.2), layout="constrained")
    for axis, row in zip(axes, rows, strict=True):
        times = [float(row[column]) for _, column, _ in BARS]
        bars = axis.barh([name for name, _, _ in BARS], times, color=[color for _, _, color in BARS])
        ratio = times[0] / times[1]
        axis.bar_label(bars, [f" {times[0]:,.0f} ms", f" {times[1]:,.0f} ms, {ratio:.0f} times as fast"])
        axis.set_title(f"four hosts, links of {RATES[row['rate']]}", loc="left", fontsize=10)
        axis.invert_yaxis()
        axis.set_xlim(0, times[0] * 1.15)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("time of one step on 25.6 million float32, ms")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        draw(json.load(file), sys.argv[2])
