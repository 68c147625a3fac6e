"""Time of a step: one flat array beside a model's many arrays of the same length together, tiny to long.

    mpirun -n 2 python tests/benchmarks/bench_steps.py [--scheme TEXT]... [--turns N] [--quick]

The arrays have the shapes of ResNet-50's 161 parameters, scaled to the length; ``reduce(x, out=y)``. The two layouts
and MPI's own all-reduce take turns in one job. Given is the least time over all turns, on the slowest rank.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import mpicomp

SCHEMES = ("dense", "scalecom:chunk=112", "topk:density=0.01", "onebit", "qsgd")
TURNS = {1024: 3000, 400_000: 400, 25_600_000: 9}  # by elements
BLOCKS = ((3, 64), (4, 128), (6, 256), (3, 512))  # of ResNet-50: how many, and their width


def lengths(total: int) -> list[int]:
    """Lengths of ResNet-50's parameters, together about ``total``: convolutions, normalisations, the classifier."""
    found, before = [], 64

    def convolution(inputs: int, outputs: int, side: int) -> None:
        found.extend((inputs * outputs * side * side, outputs, outputs))

    convolution(3, 64, 7)
    for blocks, width in BLOCKS:
        for block in range(blocks):
            convolution(before, width, 1)
            convolution(width, width, 3)
            convolution(width, 4 * width, 1)
            if block == 0:
                convolution(before, 4 * width, 1)
            before = 4 * width
    found.extend((2048 * 1000, 1000))
    return [max(1, total * one // sum(found)) for one in found]


def least(runs: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Least seconds of each, on the slowest rank."""
    found = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
        run()
    for _ in range(turns):
        for name, run in runs.items():
            MPI.COMM_WORLD.Barrier()
            begin = time.perf_counter()
            run()
            found[name] = min(found[name], time.perf_counter() - begin)
    return {name: MPI.COMM_WORLD.allreduce(one, MPI.MAX) for name, one in found.items()}


def measure(comm: mpicomp.Comm, scheme: str, total: int, turns: int) -> dict[str, float]:
    """Seconds of native, of a step on a flat array, and of one on many."""
    rng = np.random.default_rng(comm.rank)
    sizes = lengths(total)
    many = {f"layer {i}": rng.standard_normal(n).astype(np.float32) for i, n in enumerate(sizes)}
    out = {name: np.empty_like(array) for name, array in many.items()}
    flat = np.concatenate(list(many.values()))
    mean = np.empty_like(flat)
    reducers = [mpicomp.Reducer(comm, scheme) for _ in range(2)]
    return least({
        "native": lambda: MPI.COMM_WORLD.Allreduce(flat, mean),
        "flat": lambda: reducers[0].reduce(flat, out=mean),
        "161 arrays": lambda: reducers[1].reduce(many, out=out),
    }, turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheme", action="append", help=f"one of several; by default {', '.join(SCHEMES)}")
    parser.add_argument("--turns", type=int, help="of every row; by default fewer for long vectors")
    parser.add_argument("--quick", action="store_true", help="two turns and no long vector: a try-out, not a figure")
    options = parser.parse_args()
    comm = mpicomp.Comm(MPI.COMM_WORLD)
    if comm.rank == 0:
        print(f"{'scheme':20} {'elements':>10} {'native':>10} {'flat':>10} {'161 arrays':>10}  ms")
    for scheme in options.scheme or SCHEMES:
        for total, usual in TURNS.items():
            if options.quick and total > 1_000_000:
                continue
            found = measure(comm, scheme, total, 2 if options.quick else options.turns or usual)
            if comm.rank == 0:
                print(f"{scheme:20} {total:10} " + " ".join(f"{1e3 * one:10.3f}" for one in found.values()), flush=True)


if __name__ == "__main__":
    main()
