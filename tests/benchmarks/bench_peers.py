"""Steps of PyTorch's DistributedDataParallel over hosts: its own hooks over Gloo beside ours over MPI.

    python tests/benchmarks/bench_peers.py FIGURE... [--quick] [--output FILE]       all: every figure

Figures are named by the rate of the hosts' links. Needs root and iproute2 (tests/cluster/hosts.py). Four hosts share
this machine's cores: at 10 Gbit/s it is they, not the wire, that limit. Of two hosts each has its own core. "beyond
no exchange" is a step's time less that of a step whose gradients stay on their rank; processor time is per rank, and
less noisy if the machine is busy.
"""

import json
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]
from figures import answer, main, ms  # noqa: E402
from hosts import Hosts  # noqa: E402

STEP = HERE.parent / "cluster" / "ddp_step.py"
MODELS = ("resnet18", "resnet50")
ROUNDS = {"100mbit": 3, "1gbit": 5, "10gbit": 9}
SCHEMES = ("dense", "half", "powersgd:rank=4", "topk:density=0.01", "scalecom:chunk=112,beta=0.1")


def ddp_at(rate, count):
    def figure(quick):
        rows, raw = [], {}
        rounds = 1 if quick else ROUNDS[rate]
        with Hosts(count, rate) as hosts:
            for model in MODELS[: 1 if quick or rate == "100mbit" else None]:
                settings = {"model": model, "schemes": SCHEMES[: 1 if quick else None], "rounds": rounds}
                raw[model] = one = answer(hosts.run(1, ["python", STEP, json.dumps(settings)], time_limit=900))
                rows += rows_of(model, one)
        return f"{count} hosts, {rate}, one rank each, float32; medians of {rounds} steps in turn", rows, raw

    figure.__doc__ = f"DDP steps whose time is their exchange, over {count} hosts of {rate}."
    return figure


def rows_of(model, one):
    seconds = {name: median(each) for name, each in one["seconds"].items()}
    dense = next(iter(seconds.values()))  # DDP's own all-reduce is the first
    alone = {name: 0.0 if name.startswith("Reducer") else seconds["DDP, no exchange"] for name in seconds}
    return [{
        "model": model, "method": name, "ms per step": ms(value), "beyond no exchange": ms(value - alone[name]),
        "processor ms": ms(one["busy_seconds"][name]),
        "MB per host": f"{one['bytes_per_host'][name] / 1e6:.2f}", "DDP, Gloo / it": f"{dense / value:.2f}",
    } for name, value in seconds.items()]  # fmt: skip


FIGURES = {f"ddp-{rate}-hosts": ddp_at(rate, 4) for rate in ROUNDS}
FIGURES |= {f"ddp-{rate}-two-hosts": ddp_at(rate, 2) for rate in ("1gbit", "10gbit")}

if __name__ == "__main__":
    sys.exit(main(FIGURES, __doc__, "peers-"))
