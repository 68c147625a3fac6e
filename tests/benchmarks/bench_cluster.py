"""Speed-up over MPI's own all-reduce on four hosts: dense schedules and compression schemes.

    python tests/benchmarks/bench_cluster.py FIGURE... [--quick] [--output FILE]     all: every figure

steps-RATE       one step on vectors as long as three models: time, bytes, share of the wire's limit
accuracy-RATE    a CNN on Fashion-MNIST trained to a test accuracy, dense and compressed: seconds

RATE is 100mbit, 1gbit or 10gbit. `python tests/benchmarks/plot_cluster.py` draws the recorded ones.

Needs root and iproute2 (tests/cluster/hosts.py). The hosts share this machine's cores: at 10 Gbit/s it is they, not
the wire, that limit, and a real cluster would be faster.
"""

import json
import os
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]
from figures import main, ms, on_hosts  # noqa: E402
from hosts import Hosts  # noqa: E402
from limits import allreduce_bytes  # noqa: E402

MODELS = {"ResNet-18": 11_689_512, "ResNet-50": 25_557_032, "LSTM": 66_000_000}  # elements
RATES = {"100mbit": 1e8, "1gbit": 1e9, "10gbit": 1e10}
DENSE = ["ring", "halving_doubling", "auto"]
SCHEMES = ["half", "qsgd", "onebit", "topk:density=0.01", "dgc:density=0.001", "scalecom:chunk=112,beta=0.1"]


def steps_at(rate, bits):
    def figure(quick):
        rows, raw = [], {}
        models = {"one million": 1_000_000} if quick else MODELS
        turns = {"dense": 1 if quick or rate == "100mbit" else 3, "compressed": 1 if quick else 7}
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


TARGET = 0.85  # test accuracy
TRAINED = {
    "dense": [],
    "ScaleCom 100x": ["--scheme", "scalecom:chunk=100,beta=0.1", "--compress-warmup", "1"],
    "DGC 0.1 %": ["--scheme", "dgc:density=0.001,layers=whole", "--compress-warmup", "1"],
}


def accuracy_at(rate):
    def figure(quick):
        data = Path(os.environ.get("MPICOMP_DATA", HERE.parents[1] / "shared" / "data")) / "fashion-mnist"
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


FIGURES = {f"steps-{rate}": steps_at(rate, bits) for rate, bits in RATES.items()}
FIGURES |= {f"accuracy-{rate}": accuracy_at(rate) for rate in ("100mbit", "1gbit")}

if __name__ == "__main__":
    sys.exit(main(FIGURES, __doc__, prefix="cluster-"))
