"""The picture of the README from the figures: `python tests/benchmarks/plot_figures.py FIGURES.json PICTURE.png`."""

import json
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from palette import colour

RATES = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s"}
LABELS = {
    "native": "MPI_Allreduce\n(exact)", "ring": "ring\n(exact)", "topk:density=0.01": "topk, 1 %\n(lossy)",
    "scalecom:chunk=112,beta=0.1": "scalecom, 1/112\n(lossy)",
}  # fmt: skip
MODEL = "ResNet-50"


def draw(figures, path):
    """Draw a panel per link rate: exact methods beside lossy ones, on a linear axis that starts at zero."""
    figure, axes = pyplot.subplots(1, len(RATES), figsize=(10.5, 3.6), layout="constrained", sharey=True)
    for axis, (rate, name) in zip(axes, RATES.items(), strict=True):
        rows = {row["method"]: row for row in figures[f"cluster-steps-{rate}"]["rows"] if row["model"] == MODEL}
        times = [float(rows[method]["ms per step"]) for method in LABELS]
        bars = axis.barh(list(LABELS.values()), times, color=[colour(method) for method in LABELS])
        axis.bar_label(bars, [f" {time:,.0f} ms" for time in times], fontsize=9)
        axis.set_title(f"links of {name}", loc="left", fontsize=10)
        axis.set_xlim(0, max(times) * 1.35)
        axis.ticklabel_format(axis="x", style="plain")
        axis.locator_params(axis="x", nbins=4)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    figure.suptitle("The slower the link, the more a lossy step saves over an exact all-reduce",
                    fontsize=12, x=0.01, ha="left")
    figure.supxlabel("ms per step on ResNet-50's 25.6 million float32 gradients; four hosts emulated on two CPU cores, "
                     "links shaped to the rate", fontsize=9)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        draw(json.load(file), sys.argv[2])
