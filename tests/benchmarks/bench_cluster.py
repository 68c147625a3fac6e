"""Speed-up over MPI's own all-reduce on four hosts: dense schedules and compression schemes.

    python tests/benchmarks/bench_cluster.py FIGURE... [--quick] [--output FILE]     all: every figure

steps-RATE       one step on vectors as long as two models: time, bytes, share of the wire's limit
levels-RATE      one step with ranks as a scheme's workers, and with nodes: one rank per host, and two
change           the scheme auto, when the rate of the links changes in mid-run, beside its candidates as fixed schemes
accuracy-RATE    a CNN on Fashion-MNIST trained to a test accuracy, dense and compressed: seconds

RATE is 100mbit, 1gbit or 10gbit. `python tests/benchmarks/plot_cluster.py` draws the recorded ones.

Needs root and iproute2 (tests/cluster/hosts.py). The hosts share this machine's cores: at 10 Gbit/s it is they, not
the wire, that limit, and a real cluster would be faster.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]
from figures import MEASURE, main, ms, on_hosts, verdict  # noqa: E402
from hosts import Hosts  # noqa: E402
from limits import allreduce_bytes  # noqa: E402

MODELS = {"ResNet-18": 11_689_512, "ResNet-50": 25_557_032}  # elements
RATES = {"100mbit": 1e8, "1gbit": 1e9, "10gbit": 1e10}
DENSE = ["ring", "halving_doubling", "auto"]
SCHEMES = ["half", "int8", "int4", "fp8", "qsgd", "onebit", "topk:density=0.01", "dgc:density=0.001",
           "scalecom:chunk=112,beta=0.1"]  # fmt: skip


def steps_at(rate, bits):
    def figure(quick):
        rows, raw = [], {}
        models = {"one million": 1_000_000} if quick else MODELS
        slow = rate == "100mbit"  # a dense step takes 20 s
        turns = {"dense": 1 if quick or slow else 3, "compressed": 1 if quick else 3 if slow else 7}
        with Hosts(4, rate) as hosts:
            for model, n in models.items():
                task = {"n": n, "algorithms": DENSE, "schemes": SCHEMES, "iterations": turns}
                raw[model] = one = on_hosts(hosts, "methods", task, time_limit=900)
                rows += [step_row(bits, model, n, name, one) for name in one["seconds"]]
        return f"4 hosts, {rate}, one rank each, float32; medians of alternating calls", rows, raw

    figure.__doc__ = f'One step of each method at {rate}; "wire" is the share of the limit that the bytes sent set.'
    return figure


def step_row(bits, model, n, name, one):
    seconds, native = (median(one["seconds"][key]) for key in (name, "native"))
    sent = one["bytes_per_rank"].get(name, allreduce_bytes(n, 4))
    return {
        "model": model, "method": name, "ms per step": ms(seconds), "MB per rank": f"{sent / 1e6:.2f}",
        "wire": f"{8 * sent / bits / seconds:.2f}", "native / it": f"{native / seconds:.2f}",
    }  # fmt: skip


LEVELS = ["scalecom:chunk=112,beta=0.1", "topk-global:density=0.01", "dgc:density=0.001", "int8", "onebit",
          "powersgd:rank=4"]  # fmt: skip


def levels_at(rate):
    def figure(quick):
        n = 1_000_000 if quick else MODELS["ResNet-50"]
        texts = {name: f"{name}{',' if ':' in name else ':'}nodes=" for name in LEVELS}
        names = [text + nodes for text in texts.values() for nodes in ("no", "yes")]
        raw = {}
        for count, ranks in ((4, 1), (2, 2), (4, 2)):
            with Hosts(count, rate) as hosts:
                task = {"n": n, "names": names[::2] if ranks == 1 else names}
                raw[f"{count} x {ranks}"] = on_hosts(hosts, "steps", task, time_limit=900, ranks=ranks)
        rows = [{"method": name, **{f"{form}, {workers}, ms": ms(one[text + nodes]) for form, one in raw.items()
                                    for nodes, workers in (("no", "ranks"), ("yes", "nodes")) if text + nodes in one}}
                for name, text in texts.items()]
        return f"hosts x ranks, {rate}, {n} float32; medians of alternating steps", rows, raw

    figure.__doc__ = f"One step of each method at {rate}, whose workers are ranks or nodes."
    return figure


TARGET = 0.85  # test accuracy
TRAINED = {
    "dense": [],
    "ScaleCom 100x": ["--scheme", "scalecom:chunk=100,beta=0.1", "--compress-warmup", "1"],
    "DGC 0.1 %": ["--scheme", "dgc:density=0.001,layers=whole", "--compress-warmup", "1"],
}


def accuracy_at(rate):
    def figure(quick):
        data = Path(os.environ.get("MPICOMP_DATA", HERE.parents[2] / "shared" / "data")) / "fashion-mnist"
        command = ["python", "-m", "mpicomp.cli", "train", "vision", "--data", data, "--batch", 64, "--eval-every", 50]
        command += ["--epochs", 0.02 if quick else 2, "--json"]
        rows, raw = [], {}
        with Hosts(4, rate) as hosts:
            for name, options in TRAINED.items():
                done = hosts.run(1, [*command, *options], time_limit=900)
                if done.returncode:
                    sys.exit(f"training failed with status {done.returncode}\n{done.stdout}{done.stderr}")
                raw[name] = report = json.loads(done.stdout)
                rows.append({"scheme": name, **accuracy_row(report)})
        return (f"4 hosts, {rate}, 64 rows a worker, SGD with momentum 0.9, lr 0.05, seed 0; accuracy {TARGET}",
                rows, raw)

    figure.__doc__ = f"The CNN on Fashion-MNIST, one worker a host at {rate}, until it has the accuracy."
    return figure


def accuracy_row(report):
    """Steps are taken to be equally long; evaluations are not counted."""
    a_step = report["seconds"]["steps"] / report["steps"]
    reached = next((point["step"] for point in report["series"] if point["metric"] >= TARGET), None)
    return {
        "ms per step": ms(a_step), "last accuracy": f"{report['series'][-1]['metric']:.4f}",
        "seconds to the accuracy": f"{reached * a_step:.1f}" if reached else "not reached",
    }  # fmt: skip


CANDIDATES = {  # of auto, with its limit of the error
    0.1: ["dense", "half", "natural", "scaled-integer:bits=8"],
    1: ["dense", "half", "topk-global:density=0.1"],  # whose order is another on slow links
}
CHANGES = ["10gbit", "100mbit", "10gbit"]


def change(quick):
    """`auto` within 50 steps after a change of the rate of all links, beside its candidates as fixed schemes."""
    n, steps, rows, raw = 100_000 if quick else 4_000_000, 50, [], {}
    for error, fixed in CANDIDATES.items():
        candidates = "+".join(text.replace(":", "/") for text in fixed)
        auto = f"auto:error={error},candidates={candidates}"
        with Hosts(4, CHANGES[0]) as hosts:
            task = {"n": n, "auto": auto, "fixed": fixed, "steps": steps, "turns": [2] * 3 if quick else [15, 5, 15],
                    "folder": str(hosts.directory), "rates": [f"{i} {rate}" for i, rate in enumerate(CHANGES)]}
            raw[auto] = while_changing(hosts, task)
        rows += [change_row(error, rate.partition(" ")[2], auto, one) for rate, one in raw[auto].items()]
    return f"4 hosts, one rank each, {n} float32; medians of alternating steps after {steps} steps", rows, raw


def while_changing(hosts, task):
    """Run measure.py's `changing`, and set the rates of the links when it asks."""
    command = [*hosts.launcher(), "python", MEASURE, "changing", json.dumps(task)]
    job = hosts.start("node0", command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for number, rate in enumerate(CHANGES):
        while job.poll() is None and not (hosts.directory / f"asks-{number}").exists():
            time.sleep(0.05)
        hosts.set_rate(rate)
        (hosts.directory / f"set-{number}").touch()
    out, err = job.communicate()
    if job.returncode:
        sys.exit(f"the job failed with status {job.returncode}\n{out}{err}")
    return json.loads(out)


def change_row(error, rate, auto, one):
    seconds = {text: median(each) for text, each in one["seconds"].items()}
    mine = seconds.pop(auto)
    best = min(seconds, key=seconds.get)
    last = [i for i, (_, chosen) in enumerate(one["ran"], 1) if chosen != one["ran"][-1][1]]
    return {
        "error": error, "rate": rate, "chosen": one["chosen"], "steps until then": max(last, default=0),
        "ms per step": ms(mine), "best fixed": best, "its ms": ms(seconds[best]),
        "best / auto": verdict(seconds[best] / mine, 1 / 1.1),
    }  # fmt: skip


FIGURES = {f"steps-{rate}": steps_at(rate, bits) for rate, bits in RATES.items()}
FIGURES |= {f"levels-{rate}": levels_at(rate) for rate in ("1gbit", "10gbit")}
FIGURES["change"] = change
FIGURES |= {f"accuracy-{rate}": accuracy_at(rate) for rate in ("100mbit", "1gbit")}

if __name__ == "__main__":
    sys.exit(main(FIGURES, __doc__, prefix="cluster-"))
