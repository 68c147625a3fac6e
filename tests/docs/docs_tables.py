"""Fill the tables of README.md and of pages in docs/ from the recorded results.

`python tests/docs/docs_tables.py` rewrites the tables between `<!-- table NAME -->` and `<!-- /table -->`, and drops
recorded numbers that neither a table nor a picture shows. tests/docs/test_docs_tables.py fails if a page shows anything
else, or if a file holds more.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
PAGES = [ROOT / "README.md", *(ROOT / "docs" / name for name in (
    "benchmarks.md", "fidelity.md", "development/measurements.md", "development/predictions.md"))]  # fmt: skip
PLACE = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)
RATES = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s"}
# Tables of DDP's steps -> links of their columns.
DDP = {"ddp": ("100mbit-hosts", "1gbit-hosts", "10gbit-hosts"), "ddp-two": ("1gbit-two-hosts", "10gbit-two-hosts")}
EXACT = ("native", "ring", "halving_doubling", "auto")
MODEL = "ResNet-50"
# Method of a timed step -> the row of docs/development/fidelity.md ("The other schemes") that shows its accuracy cost.
TRAINED = {
    "half": "half", "qsgd": "QSGD 7 levels", "topk:density=0.01": "top-k 1 %",
    "scalecom:chunk=112,beta=0.1": "ScaleCom by chunks of 100, beta 0.1, dense warm-up",
}  # fmt: skip
# Files of figures; of these sections pictures show raw numbers, too.
FIGURES = ("allreduce-2-cores", "cluster-2-cores", "cpu-2-cores", "diloco-2-cores", "training-2-cores")
# Section of training-2-cores -> name of the model, what its trainings are judged by, factor, decimals and unit.
TRAININGS = {
    "cnn": ("CNN, Fashion-MNIST", "accuracy", 100, 1, " %"), "ratings": ("NeuMF, made-up ratings", "hr@10", 1, 3, ""),
    "transformer": ("Transformer, characters", "held-out loss", 1, 3, " nats"),
}  # fmt: skip
CURVES = ("cluster-accuracy-100mbit", "cluster-accuracy-1gbit")
LIMIT, FASTER = {"of the limit": "share of the wire's limit"}, {"native / it": "MPI_Allreduce / it"}
STEP = {"native ms": "MPI_Allreduce, ms", "step ms": "step, ms", "native / step": "MPI_Allreduce / step",
        "floor ms": "lower bound, ms", "floor / step": "lower bound / step"}  # fmt: skip
PREDICTED = {"": "", "length": "length", "predicted ms": "predicted, ms", "measured ms": "measured, ms",
             "off, at most 15 %": "error, at most 15 %"}  # fmt: skip
# Table -> file, section, and column -> heading.
ROWS = {
    "kernel": ("cpu-2-cores", "kernel", {
        "operation": "operation", "ms": "ms", "must move": "bytes moved", "GB/s": "GB/s"}),
    "ring-node": ("cpu-2-cores", "ring-node", {"algorithm": "algorithm", "ms": "ms", **FASTER}),
    "ring-hosts": ("cpu-2-cores", "ring-hosts", {
        "algorithm": "algorithm", "ms": "ms", "of the wire limit": "share of the wire's limit", **FASTER}),
    "allreduce-hosts": ("cpu-2-cores", "allreduce-hosts", {
        "ranks a host": "ranks per host", "MiB": "MiB", "native ms": "MPI_Allreduce, ms", "ring ms": "`ring`, ms",
        "auto ms": "`auto`, ms", **LIMIT, "native / auto": "MPI_Allreduce / `auto`"}),
    "schedules": ("allreduce-2-cores", "allreduce-schedules", {
        "hosts": "hosts", "rate": "rate", "KiB": "KiB", "native ms": "MPI_Allreduce, ms", "ring ms": "`ring`, ms",
        "direct ms": "`direct`, ms", "halving_doubling ms": "`halving_doubling`, ms", "auto ms": "`auto`, ms",
        "auto / fastest": "`auto` / fastest"}),
    "small": ("allreduce-2-cores", "allreduce-small", {
        "ranks": "ranks", "under": "MPI", "bytes": "bytes", "native us": "mpi4py, us", "auto us": "`auto`, us",
        "added us": "added, us"}),
    "step": ("allreduce-2-cores", "allreduce-step", {
        "where": "setting", "all-reduce ms": "all-reduce, ms", "step ms": "step, ms",
        "all-reduce in place ms": "all-reduce in place, ms", "step in place ms": "step in place, ms",
        "look for NaN ms": "search for NaN, ms"}),
    "scalecom": ("cpu-2-cores", "scalecom-hosts", {"rate": "rate", **STEP}),
    "shared": ("cpu-2-cores", "shared", {"": "setting", **STEP, "slowest advantage": "fastest peer / step"}),
    "bytes": ("cpu-2-cores", "bytes", {
        "ranks": "ranks", "bytes per rank and step": "bytes per rank and step",
        "by Open MPI's monitoring": "by Open MPI's monitoring", "formula": "by formula"}),
    "recorder": ("allreduce-2-cores", "outside recorder", {
        "step us": "step, us", "recording adds": "added by recording", "an event ns": "ns per event"}),
    "outside": ("cpu-2-cores", "outside native", {
        "under": "MPI", "steps a barrier": "calls per barrier", "KiB": "KiB", "C us": "C, us",
        "mpi4py us": "mpi4py, us", "bench us": "`mpicomp bench`, us", "shorter / longer": "shorter / longer"}),
    "torch-overhead": ("cpu-2-cores", "torch-overhead", {
        "model": "model", "parameters": "parameters", "plain ms": "plain step, ms", "wrapped ms": "wrapped step, ms",
        "wrapped adds": "added", "through buckets adds": "added through buckets"}),
    "diloco-accuracy": ("diloco-2-cores", "diloco-accuracy", {
        "training": "training", "steps": "inner steps", "test loss": "held-out loss, nats",
        "bits per worker": "bits per worker", "nats above": "above averaged gradients, nats"}),
    "torch-hosts": ("cpu-2-cores", "torch-hosts", {
        "parameters": "parameters", "buckets": "buckets", "alone ms": "step without exchange, ms",
        "exposed after ms": "exchange after backward, ms", "exposed beside ms": "during backward, ms",
        "falls by": "saved"}),
    **{f"simulate-{where}": ("cpu-2-cores", f"simulate-{where}", PREDICTED)
       for where in ("100mbit-hosts", "1gbit-hosts", "10gbit-hosts", "node")},
    "simulate-alone": ("cpu-2-cores", "simulate-alone", {
        "": "scheme", **{name: heading for name, heading in PREDICTED.items() if name not in ("", "length")}}),
    "advise": ("cpu-2-cores", "simulate-advise-hosts", {
        "": "network", "exchange of": "exchange of", "predicted ms": "predicted, ms", "measured ms": "measured, ms",
        "off, at most 15 %": "error, at most 15 %"}),
}  # fmt: skip
IN_README = ("native", "ring", "half", "topk:density=0.01", "scalecom:chunk=112,beta=0.1")


def results(name):
    """The recorded results of docs/results/NAME.json."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def text(rows):
    """A list of equally keyed dicts as a Markdown table."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([str(row[name]) for name in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def first(value):
    """The number at the start of a recorded cell such as ``1.51 (at least 1.3: met)``."""
    return float(str(value).split()[0])


def milliseconds(value):
    return f"{float(value):,.0f}".replace(",", " ") + " ms"


def method(name):
    """A method's name in a table's first column, with its loss."""
    shown = "`MPI_Allreduce` (Open MPI 5)" if name == "native" else f"`{name}`"
    return f"{shown}, {'exact' if name in EXACT else 'lossy'}"


def steps(figures, rate):
    """Rows of one link rate for the model of the tables, by method."""
    return {row["method"]: row for row in figures[f"cluster-steps-{rate}"]["rows"] if row["model"] == MODEL}


def readme():
    """Time of a step beside the accuracy cost."""
    figures, dense = results("cluster-2-cores"), results("fidelity")["schemes"]
    by_rate = {rate: steps(figures, rate) for rate in RATES}
    return [{"method": method(name),
             **{f"step, {RATES[rate]}": milliseconds(rows[name]["ms per step"]) for rate, rows in by_rate.items()},
             "accuracy cost": f"{below(dense, dense[TRAINED[name]]):.1f} points" if name in TRAINED else "none"}
            for name in IN_README]  # fmt: skip


def hosts():
    """Time of a step over emulated hosts, and speed-up over MPI's own all-reduce, at three link rates."""
    figures = results("cluster-2-cores")
    by_rate = {rate: steps(figures, rate) for rate in RATES}
    rows = []
    for name, row in by_rate["1gbit"].items():
        rows.append({"method": method(name), "sent per rank": f"{float(row['MB per rank']):.3g} MB"})
        for rate, shown in RATES.items():
            rows[-1][shown] = milliseconds(by_rate[rate][name]["ms per step"])
            rows[-1][f"speed-up, {shown}"] = f"{float(by_rate[rate][name]['native / it']):.2f}x"
    return rows


def node():
    """Dense all-reduce on one node: MPI's own call, `auto`, and `auto` with arrays of `Comm.empty`."""
    rows = [row for row in results("allreduce-2-cores")["allreduce-node"]["rows"] if isinstance(row["MiB"], float)]
    return [{"MPI": row["under"], "ranks": row["ranks"], "size": f"{row['MiB']:g} MiB",
             "`MPI_Allreduce`": f"{first(row['native ms']):.2f} ms", "`auto`": f"{first(row['auto ms']):.2f} ms",
             "speed-up": f"{first(row['native / auto']):.2f}x",
             "`auto`, `Comm.empty`": f"{first(row['window ms']):.2f} ms",
             "speed-up, `Comm.empty`": f"{first(row['native ms']) / first(row['window ms']):.2f}x"} for row in rows]


def ddp(links):
    """Steps of DistributedDataParallel with PyTorch's hooks and with ddp_hook."""
    figures, cells = results("cluster-2-cores"), {}
    for link in links:
        for row in figures[f"peers-ddp-{link}"]["rows"]:
            column = f"{row['model'].replace('resnet', 'ResNet-')}, {RATES[link.split('-')[0]]}"
            cells.setdefault(row["method"], {})[column] = milliseconds(row["ms per step"])
    return [{"method": hook(name), **columns} for name, columns in cells.items()]


def hook(name):
    """A hook's name as it is written in code."""
    if name.startswith("ddp_hook "):
        return f'`mpicomp.torch.ddp_hook(comm, "{name.removeprefix("ddp_hook ")}")`'
    if name.startswith("Reducer "):
        return f'`mpicomp.Reducer(comm, "{name.removeprefix("Reducer ")}")`'
    return name.replace(", Gloo", " over Gloo").replace("backend mpicomp", "backend `mpicomp`")


def to_accuracy():
    """Training a small CNN to 85 % over emulated hosts."""
    figures, rows = results("cluster-2-cores"), {}
    for rate in ("100mbit", "1gbit"):
        for row in figures[f"cluster-accuracy-{rate}"]["rows"]:
            cells = rows.setdefault(row["scheme"], {"scheme": row["scheme"]})
            cells["accuracy at the end"] = f"{100 * float(row['last accuracy']):.1f} %"
            cells[f"step, {RATES[rate]}"] = milliseconds(row["ms per step"])
            cells[f"to 85 %, {RATES[rate]}"] = f"{row['seconds to the accuracy']} s"
    return list(rows.values())


def training():
    """Trainings: the end, bytes, time per step and time to an accuracy, by model and scheme."""
    figures, rows = results("training-2-cores"), []
    seconds = {(row["model"], row["scheme"], row["rate"]): [float(row[f"{part} ms"]) / 1e3 for part in
               ("exchange", "computing")] for row in figures["training-steps"]["rows"]}  # fmt: skip
    for model, (name, *form) in TRAININGS.items():
        runs = {}
        for row in figures[f"training-{model}"]["rows"]:
            runs.setdefault(row["scheme"], []).append(row)
        for label, each in runs.items():
            cells = {"model": name, "scheme": label, "seeds": len(each), "at the end": ended(each, *form),
                     "MB per worker": each[0]["MB per worker"], "target": valued(each[0]["target"], *form[1:])}
            times = {rate: training_times(model, rate, each, seconds) for rate in RATES}
            cells |= {f"step, {shown}": f"{1e3 * times[rate][0]:.0f} ms" for rate, shown in RATES.items()}
            rows.append({**cells, **{f"to the target, {shown}": times[rate][1] for rate, shown in RATES.items()}})
    return rows


def ended(runs, measure, *form):
    """The mean over seeds of what trainings ended with."""
    if any(run["value"] == "diverges" for run in runs):
        return "diverges"
    return f"{measure} {valued(mean(float(run['value']) for run in runs), *form)}"


def valued(value, factor, decimals, unit):
    return f"{factor * value:.{decimals}f}{unit}"


def training_times(model, rate, runs, seconds):
    """Seconds of a step after the first ones, and a cell with those until the accuracy."""
    one = runs[0]
    (first, computing), (exchange, _) = (seconds[model, one[scheme], rate] for scheme in ("first", "timed"))
    step, warming = computing + exchange / one["every"], computing + first
    if not all(run["steps to it"] for run in runs):
        return step, "not reached"
    steps = mean(run["steps to it"] for run in runs)
    warm = min(steps, one["first steps"])
    return step, f"{warm * warming + (steps - warm) * step:.1f} s"


def accuracy():
    """Accuracy cost of every scheme that was trained, smallest cost first; then those that diverge."""
    found = results("fidelity")
    schemes, codes, characters = found["goals"] | found["schemes"], found["block_codes"], found["characters"]
    perplexities = {runs[0]["scheme"]: runs for runs in characters.values()}
    rows = []
    for label, runs in (schemes | codes).items():
        cost = below(codes if label in codes else schemes, runs)
        bits = schemes["dense"][0]["curve"]["bits"][-1] / runs[0]["curve"]["bits"][-1]
        perplexity = characters.get(label) or (perplexities.get(runs[0]["scheme"]) if "rate" not in label else None)
        rows.append((cost, {
            "setting": label, "scheme": f"`{runs[0]['scheme']}`",
            "ratio": f"{bits:.3g}x" if cost is not None else "-",
            "points below dense": "diverges" if cost is None else f"{round(cost, 1) + 0.0:.1f}",
            "perplexity, LSTM": against(characters["dense"], perplexity)}))  # fmt: skip
    rows.sort(key=lambda row: (row[0] is None, row[0]))
    return [row for cost, row in rows if row["setting"] != "dense"]


def adam():
    """Hit rate of a recommender trained under Adam."""
    found = results("fidelity")["recommend"]
    dense = found["dense"][0]["curve"]["bits"][-1]
    return [{"setting": label, "ratio": f"{dense / runs[0]['curve']['bits'][-1]:.3g}x",
             "hit rate at 10": f"{mean(run['curve']['hr@10'][-1] for run in runs):.3f}"}
            for label, runs in found.items()]  # fmt: skip


def below(schemes, runs):
    """Points of accuracy below dense, mean over the seeds that both have; None if a run diverged."""
    dense = {run["seed"]: run["curve"]["accuracy"][-1] for run in schemes["dense"]}
    if any(run["diverged"] is not None for run in runs):
        return None
    return 100 * mean(dense[run["seed"]] - run["curve"]["accuracy"][-1] for run in runs) + 0.0


def against(dense, runs):
    """Growth of the perplexity over dense; empty if not run."""
    if runs is None:
        return ""
    known = {run["seed"]: run["curve"]["perplexity"][-1] for run in dense}
    return f"{100 * (mean(run['curve']['perplexity'][-1] / known[run['seed']] for run in runs) - 1):+.1f} %"


def cell(value):
    """A recorded value as a page shows it: link rates with their unit, missed goals in bold."""
    return RATES.get(value, str(value)).replace("MISSED", "**missed**")


def rows_of(name):
    """Rows of a recorded section, with the columns and headings of a table."""
    file, section, columns = ROWS[name]
    return [{heading: cell(row.get(column, "")) for column, heading in columns.items()}
            for row in results(file)[section]["rows"]]  # fmt: skip


def phases():
    """Milliseconds of each phase of a ScaleCom step, on the leader and on the other ranks."""
    rows = []
    for row in results("cpu-2-cores")["scalecom-hosts"]["rows"]:
        leader, others = (dict(re.findall(r"(\w+) ([\d.]+)", row[role])) for role in ("leader, ms", "others, ms"))
        rows += [{"rate": RATES[row["rate"]], "phase": f"`{name}`", "leader": f"{leader[name]} ms",
                  "other ranks": f"{others[name]} ms"} for name in leader]  # fmt: skip
    return rows


def other_models():
    """Time of a step over emulated hosts for the models that the users' page leaves out."""
    figures, cells = results("cluster-2-cores"), {}
    for rate, shown in RATES.items():
        for row in figures[f"cluster-steps-{rate}"]["rows"]:
            if row["model"] != MODEL:
                column = f"{row['model']}, {shown}"
                cells.setdefault(row["method"], {})[column] = milliseconds(row["ms per step"])
    return [{"method": method(name), **columns} for name, columns in cells.items()]


def wire():
    """Share of the link's rate that a step uses."""
    figures = results("cluster-2-cores")
    by_rate = {rate: steps(figures, rate) for rate in RATES}
    return [{"method": method(name), **{RATES[rate]: f"{100 * float(rows[name]['wire']):.0f} %"
                                        for rate, rows in by_rate.items()}} for name in by_rate["1gbit"]]  # fmt: skip


TABLES = {
    "readme": readme, "hosts": hosts, "node": node, "to-accuracy": to_accuracy, "accuracy": accuracy,
    "adam": adam, "training": training, "other-models": other_models, "wire": wire, "scalecom-phases": phases,
    **{name: partial(rows_of, name) for name in ROWS}, **{name: partial(ddp, links) for name, links in DDP.items()},
}  # fmt: skip


def shown(file):
    """Sections of a file of figures that a page shows."""
    sections = {section for name, section, _ in ROWS.values() if name == file}
    if file == "training-2-cores":
        sections |= {f"training-{model}" for model in (*TRAININGS, "steps")}
    if file == "cluster-2-cores":
        sections |= {f"cluster-steps-{rate}" for rate in RATES} | {*CURVES}
        sections |= {f"peers-ddp-{link}" for links in DDP.values() for link in links}
    return sections | ({"allreduce-node"} if file == "allreduce-2-cores" else set())


def pruned(file):
    """The recorded results of a file without those that no page shows."""
    keep = shown(file)
    return {name: {key: value for key, value in section.items() if key != "raw" or name in CURVES}
            for name, section in results(file).items() if name in keep}  # fmt: skip


def filled(page):
    """A page with its tables rewritten from the recorded results."""
    return PLACE.sub(lambda place: place[1] + text(TABLES[place[2]]()) + place[3], page)


if __name__ == "__main__":
    for figures in FIGURES:
        (RESULTS / f"{figures}.json").write_text(json.dumps(pruned(figures), indent=1) + "\n")
    for path in PAGES:
        path.write_text(filled(path.read_text()))
