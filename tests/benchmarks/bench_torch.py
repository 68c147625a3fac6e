"""Cost of the PyTorch integration, and time saved by exchanging gradients during backward.

    python tests/benchmarks/bench_torch.py FIGURE... [--quick] [--output FILE]     all: every figure

overhead  a step of one process under DistributedOptimizer against plain PyTorch, for an MLP and a ResNet-8
hosts     a dense ResNet-8 step over four hosts of 1 Gbit/s (needs root and iproute2): how much longer than a step
          without exchange it takes, when gradients travel after backward and beside it
fsdp      a step of FSDP2 and of HSDP over four hosts of 1 Gbit/s, over Gloo and compressed (needs the same)

Times are medians of steps that take turns, each as slow as its slowest rank; a quotient is the median over turns.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]
from figures import ALONE, VENV, answer, main, ms  # noqa: E402
from hosts import Hosts  # noqa: E402

STEP = HERE.parent / "cluster" / "torch_step.py"
FSDP_STEP = STEP.with_name("fsdp_step.py")
MOST_OVERHEAD, LEAST_SAVED = 0.03, 0.4


def alone(task, settings, limit=500):
    """Run a task in one process."""
    command = ["timeout", "--kill-after=10", limit, VENV / "bin/mpirun", "-n", 1, VENV / "bin/python", STEP, task]
    command.append(json.dumps(settings))
    environment = {**os.environ, **ALONE}
    return answer(subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True))


def overhead(quick):
    """A single-process step: what DistributedOptimizer adds."""
    rows, raw = [], {}
    for model, batch in (("mlp", 128), ("resnet8", 64)):
        raw[model] = one = alone("overhead", {"model": model, "batch": 2 if quick else batch,
                                              "rounds": 2 if quick else 150})
        seconds = one["seconds"]
        row = {"model": model, "parameters": one["parameters"], "batch": batch}
        row["plain ms"] = ms(median(seconds["plain"]))
        for name in ("wrapped", "through buckets"):
            added = median(b / a for a, b in zip(seconds["plain"], seconds[name], strict=True)) - 1
            row[f"{name} ms"], row[f"{name} adds"] = ms(median(seconds[name])), f"{added:+.2%}"
            if name == "wrapped":
                row[f"{name} adds"] += f" (under {MOST_OVERHEAD:.0%}: {'met' if added < MOST_OVERHEAD else 'MISSED'})"
        rows.append(row)
    return "one process, one thread, dense, SGD with momentum; through buckets: as with several ranks", rows, raw


def hosts(quick):
    """Exposed communication of a dense ResNet-8 step, after backward and beside it."""
    rows, raw = [], {}
    with Hosts(4, "1gbit") as cluster:
        for width, batch, nbytes in (((16, 2, None),) if quick else
                                     ((16, 32, None), (16, 32, 64 << 10), (64, 8, None), (64, 8, 2 << 20))):
            settings = {"model": "resnet8", "width": width, "batch": batch, "rounds": 1 if quick else 60}
            command = ["python", STEP, "overlap", json.dumps({**settings, "bucket_bytes": nbytes})]
            raw[f"{width} {nbytes}"] = one = answer(cluster.run(1, command, time_limit=500))
            rows.append(hosts_row(width, batch, one))
    return "4 hosts, 1 Gbit/s, two hosts a core; alone: the same step without exchange", rows, raw


def hosts_row(width, batch, one):
    seconds = {name: median(each) for name, each in one["seconds"].items()}
    exposed = {name: seconds[name] - seconds["alone"] for name in ("after", "beside")}
    saved = 1 - exposed["beside"] / exposed["after"]
    met = "met" if saved >= LEAST_SAVED else "MISSED"
    return {
        "width": width, "batch": batch, "parameters": one["parameters"], "buckets": one["buckets"],
        **{f"{name} ms": ms(value) for name, value in seconds.items()},
        **{f"exposed {name} ms": ms(value) for name, value in exposed.items()},
        "falls by": f"{saved:.0%} (at least {LEAST_SAVED:.0%}: {met})",
    }


def fsdp(quick):
    """Exchange of a step of FSDP2, on shards alone, and of HSDP, on replicas alone."""
    methods = [("shards", None, "dense"), *(("shards", scheme, "dense") for scheme in ("dense", "int8", "int4")),
               ("shards", "int8", "int8"), ("shards", "int4:memory=residual", "int8"), ("replicas", None, "dense"),
               *(("replicas", scheme, "dense") for scheme in ("dense", "int8", "scalecom:chunk=112,beta=0.1"))]
    with Hosts(4, "1gbit") as cluster:
        settings = {"elements": 40_000 if quick else 8_000_000, "methods": methods, "rounds": 1 if quick else 9}
        raw = answer(cluster.run(1, ["python", FSDP_STEP, json.dumps(settings)], time_limit=500))
    names = [" ".join(map(str, method)) for method in methods]
    return "4 hosts, 1 Gbit/s, 8 000 000 float32; gradients, and parameters gathered twice", [
        {"mesh": mesh, "gradients": scheme or "PyTorch, Gloo", "parameters": gather if gather != "dense" else "Gloo",
         "ms": ms(median(raw["seconds"][name])), "MB per host": f"{raw['bytes_per_host'][name] / 1e6:.1f}"}
        for name, (mesh, scheme, gather) in zip(names, methods, strict=True)], raw


FIGURES = {"overhead": overhead, "hosts": hosts, "fsdp": fsdp}


if __name__ == "__main__":
    sys.exit(main(FIGURES, __doc__, prefix="torch-"))
