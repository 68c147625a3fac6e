"""Pictures of recorded results in README.md and docs: `python tests/benchmarks/plot_cluster.py [FOLDER]`.

They show the files in docs/results, which `make bench-cluster`, `bench_allreduce.py node` and `bench_bounded.py` write.

scalecom-hosts.svg     speed-up of a few methods over MPI_Allreduce, per link rate
cluster-steps.svg      the same of all methods
node-shared.svg        speed-up of exact all-reduce on one node over the MPI library's own, per size
cluster-accuracy.svg   test accuracy over the seconds of training
bounded.svg            ratio and time of an error-bounded all-reduce over its bound, per field
"""

import json
import sys
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "images"))

from matplotlib import pyplot  # noqa: E402
from palette import EXACT, HIGHLIGHT, MUTED, NATIVE, WIDTH, colour, save, style, titled  # noqa: E402

RATES = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s"}
EXACT_METHODS = ("ring", "halving_doubling", "auto")
FEW = ("ring", "topk:density=0.01", "scalecom:chunk=112,beta=0.1")
MODEL = "ResNet-50"
SETTING = "emulated: four hosts share two CPU cores, links shaped to the rate"


def steps(figures, path, message, only=None):
    """Draw a panel per link rate: a dot per method on a logarithmic axis of speed-ups with a line at 1."""
    present = [rate for rate in RATES if f"cluster-steps-{rate}" in figures]
    names = [row["method"] for row in figures[f"cluster-steps-{present[0]}"]["rows"]
             if row["model"] == MODEL and row["method"] != "native" and row["method"] in (only or row["method"])]
    figure, axes = pyplot.subplots(1, len(present), figsize=(WIDTH, 1.25 + 0.24 * len(names)), layout="constrained",
                                   squeeze=False, sharey=True, sharex=True)
    labels = [f"{name} ({'exact' if name in EXACT_METHODS else 'lossy'})" for name in names]
    for axis, rate in zip(axes[0], present, strict=True):
        rows = {row["method"]: row for row in figures[f"cluster-steps-{rate}"]["rows"] if row["model"] == MODEL}
        gains = [float(rows[name]["native / it"]) for name in names]
        axis.axvline(1, color=MUTED, linewidth=1, zorder=1)
        axis.hlines(labels, 1, gains, colors=[colour(name) for name in names], linewidth=1.5, zorder=2)
        axis.scatter(gains, labels, color=[colour(name) for name in names], s=36, zorder=3)
        for label, gain in zip(labels, gains, strict=True):
            axis.annotate(f"{gain:.2f}x" if gain < 10 else f"{gain:.0f}x", (gain, label), fontsize=8, va="center",
                          xytext=(6 if gain >= 1 else -6, 0), textcoords="offset points",
                          ha="left" if gain >= 1 else "right")
        axis.set_xscale("log")
        axis.set_xlim(0.09, 900)
        axis.set_xticks([0.1, 1, 10, 100], ["0.1x", "1x", "10x", "100x"])
        axis.minorticks_off()
        axis.set_ylim(len(labels) - 0.4, -0.6)
        axis.set_title(f"links of {RATES[rate]}")
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
    figure.supxlabel(f"speed-up over Open MPI's MPI_Allreduce, a step on {MODEL}'s 25.6 million float32 gradients",
                     fontsize=8.5)
    titled(figure, message, SETTING)
    save(figure, path)


def node(figures, path):
    """Draw a panel per MPI library and number of ranks: speed-up over its own all-reduce, per size."""
    rows = [row for row in figures["allreduce-node"]["rows"] if isinstance(row["MiB"], float)]
    panels = list(dict.fromkeys((row["under"], row["ranks"]) for row in rows))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(WIDTH, 2.9), layout="constrained", sharey=True)
    for axis, (under, ranks) in zip(axes, panels, strict=True):
        here = [row for row in rows if (row["under"], row["ranks"]) == (under, ranks)]
        sizes = [row["MiB"] for row in here]
        for field, face, label in (("window ms", EXACT, "node_shared, arrays of Comm.empty"),
                                   ("auto ms", "none", "node_shared, any arrays")):
            gains = [float(row["native ms"]) / float(row[field]) for row in here]
            axis.plot(sizes, gains, color=EXACT, marker="o", markersize=5, linewidth=1, markeredgecolor=EXACT,
                      markerfacecolor=face, label=label)
        axis.axhline(1, color=MUTED, linewidth=1)
        axis.set_xscale("log", base=4)
        axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axis.minorticks_off()
        axis.set_ylim(0, 9)
        axis.set_yticks(range(0, 9, 2), [f"{gain}x" for gain in range(0, 9, 2)])
        axis.grid(axis="y", linewidth=0.5)
        axis.set_title(f"{under}, {ranks} ranks")
        axis.set_xlabel("MiB of float32")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    titled(figure, "From 256 KiB on, node_shared is faster than the MPI_Allreduce of both MPI libraries",
           "speed-up over the library's own call (line: 1x), exact results; one node, two CPU cores")
    save(figure, path)


def accuracy(figures, path):
    """Draw a panel per rate: a line per scheme, labelled at its end."""
    present = [rate for rate in RATES if f"cluster-accuracy-{rate}" in figures]
    figure, axes = pyplot.subplots(1, len(present), figsize=(WIDTH, 2.9), layout="constrained", squeeze=False,
                                   sharey=True)
    for axis, rate in zip(axes[0], present, strict=True):
        for name, report in figures[f"cluster-accuracy-{rate}"]["raw"].items():
            per_step = report["seconds"]["steps"] / report["steps"]
            points = report["series"]
            axis.plot([point["step"] * per_step for point in points], [100 * point["metric"] for point in points],
                      label=f"{name} ({'exact' if name == 'dense' else 'lossy'})", color=colour(name), linewidth=1.5)
        axis.axhline(85, color=MUTED, linewidth=1)
        axis.set_title(f"links of {RATES[rate]}")
        axis.set_xlabel("seconds of training steps")
    axes[0][0].set_ylabel("test accuracy, %")
    axes[0][-1].legend(loc="lower right")
    titled(figure, "At 100 Mbit/s ScaleCom reaches 85 % in half of the dense run's time, at 1 Gbit/s later",
           f"Fashion-MNIST, one seed; {SETTING}")
    save(figure, path)


FIELDS = {"smooth": ("-", "o"), "turbulence": ("--", "s"), "noise": (":", "^")}  # line and marker


def bounded(figures, path):
    """Draw a panel of the ratio and one per link rate of the time: a line per field, over the relative bound."""
    rates = [rate for rate in ("100mbit", "1gbit") if rate in figures]
    figure, axes = pyplot.subplots(1, 1 + len(rates), figsize=(WIDTH, 3.1), layout="constrained", sharex=True)
    for axis, rate in zip(axes, (rates[0], *rates), strict=True):
        is_ratio = axis is axes[0]
        for field, (line, marker) in FIELDS.items():
            rows = [row for row in figures[rate] if row["data"] == field and row["algorithm"] == "auto"]
            values = [row["ratio"] if is_ratio else row["t_med_us"] / 1e3 for row in rows]
            axis.plot([row["bound"] for row in rows], values, line, color=HIGHLIGHT, marker=marker, markersize=5,
                      linewidth=1.5, label=f"{field} field, with error bound (lossy)")
        for name, code, label in () if is_ratio else (("native", NATIVE, "MPI_Allreduce (exact)"),
                                                      ("auto", EXACT, "auto (exact)")):
            times = [row["t_med_us"] for row in figures[rate] if row["algorithm"] == name and row["bound"] is None]
            axis.axhline(median(times) / 1e3, color=code, linewidth=1.5, label=label)
        axis.set_xscale("log")
        axis.set_xlabel("relative error bound")
        axis.grid(linewidth=0.5)
        axis.set_title("compression ratio" if is_ratio else f"ms, links of {RATES[rate]}")
        if is_ratio:
            axis.set_ylim(0)
        else:
            axis.set_yscale("log")
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    titled(figure, "A looser bound saves bytes and time, most on a smooth field",
           f"all-reduce of 64 MiB of float32; {SETTING}")
    save(figure, path)


def main(folder):
    """Draw all pictures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster, dense, errors = (json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())
                              for name in ("cluster-2-cores", "allreduce-2-cores", "bounded-2-cores"))
    with style():
        steps(cluster, folder / "scalecom-hosts.svg",
              "The slower the link, the more a lossy step saves over an exact all-reduce", FEW)
        steps(cluster, folder / "cluster-steps.svg",
              "Lossy schemes win on slow links, and at 10 Gbit/s, too")
        node(dense, folder / "node-shared.svg")
        accuracy(cluster, folder / "cluster-accuracy.svg")
        bounded(errors, folder / "bounded.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "images")
