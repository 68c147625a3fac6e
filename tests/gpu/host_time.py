"""Host time of a step on a GPU: processor time of the calling thread, with kernels that do nothing.

    EMULATED_CUDA=idle python tests/cupy_on_cpu/build.py python tests/gpu/host_time.py [SCHEME ...] [--quick]

CuPy is the real one; under it, copies are copies in host memory and a launch returns at once. One rank reduces one
gradient, and ResNet-50's 161, with ``out=``. Given is the least over batches of steps. On a machine with a GPU the
command is ``python tests/gpu/host_time.py``: then the time includes waiting for kernels.
"""

from __future__ import annotations

import argparse
import json
import time

import cupy
from models import resnet50
from mpi4py import MPI

import mpicomp

SCHEMES = ("dense", "scalecom:chunk=112", "scalecom:chunk=112,layers=per-tensor")
DIVISOR = 64  # of the numbers of channels: the host does the same for long gradients
BATCH = 20


def host_seconds(comm: mpicomp.Comm, scheme: str, shapes: list[tuple[int, ...]], steps: int) -> float:
    """Least processor time of a step, after those that make what lasts."""
    grads = {f"tensor {i}": cupy.zeros(shape, "float32") for i, shape in enumerate(shapes)}
    out = {name: cupy.empty_like(array) for name, array in grads.items()}
    reducer = mpicomp.Reducer(comm, scheme)
    least = float("inf")
    for _ in range(1 + steps // BATCH):
        begin = time.thread_time()
        for _ in range(BATCH):
            reducer.reduce(grads, out=out)
        least = min(least, (time.thread_time() - begin) / BATCH)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schemes", nargs="*", default=SCHEMES, help=f"by default {', '.join(SCHEMES)}")
    parser.add_argument("--steps", type=int, default=1000, help="number of steps of each layout")
    parser.add_argument("--quick", action="store_true", help="few steps: a try-out, not a figure")
    options = parser.parse_args()
    comm = mpicomp.Comm(MPI.COMM_SELF)
    print(f"{'scheme':37} {'1 array':>10} {'161 arrays':>10}  ms")
    for scheme in options.schemes:
        found = [host_seconds(comm, scheme, shapes, BATCH if options.quick else options.steps)
                 for shapes in ([(10_000,)], resnet50(DIVISOR))]
        print(f"{scheme:37} " + " ".join(f"{1e3 * one:10.3f}" for one in found), flush=True)
        print(json.dumps({"case": f"host time of a step, {scheme}", "seconds": found[-1]}), flush=True)


if __name__ == "__main__":
    main()
