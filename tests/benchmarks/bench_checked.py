"""Cost of comparing every call: a short ``Allreduce`` with ``MPICOMP_CHECK=1`` against one without comparison.

    mpirun -n 2 python tests/benchmarks/bench_checked.py [--turns 60] [--calls 1000] [--elements 10] [--quick]

The two communicators take turns in one job. Given is the least time of a call over all turns, on the slowest rank, and
the difference: the target is 5 us on 2 ranks (docs/reliability.md).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicomp


def communicator(check: str) -> Any:
    """One whose first calls, which are all compared, lie behind it."""
    os.environ["MPICOMP_CHECK"] = check
    return mpicomp.Comm(MPI.COMM_WORLD)


def seconds_a_call(comm: Any, x: np.ndarray, calls: int) -> float:
    MPI.COMM_WORLD.Barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        comm.Allreduce(MPI.IN_PLACE, x)
    return (time.perf_counter() - begin) / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--elements", type=int, default=10, help="float32")
    parser.add_argument("--quick", action="store_true", help="one turn of 10 calls: a try-out, not a figure")
    options = parser.parse_args()
    if options.quick:
        options.turns, options.calls = 1, 10
    x = np.zeros(options.elements, np.float32)
    comms = {name: communicator(check) for name, check in (("unchecked", "0"), ("checked", "1"))}
    least = dict.fromkeys(comms, float("inf"))
    for comm in comms.values():
        seconds_a_call(comm, x, 100)
    for _ in range(options.turns):
        for name, comm in comms.items():
            least[name] = min(least[name], seconds_a_call(comm, x, options.calls))
    least = {name: MPI.COMM_WORLD.allreduce(1e6 * one, MPI.MAX) for name, one in least.items()}
    if MPI.COMM_WORLD.rank == 0:
        found = {f"{name}_us": round(one, 2) for name, one in least.items()}
        found["difference_us"] = round(least["checked"] - least["unchecked"], 2)
        print(json.dumps({"ranks": MPI.COMM_WORLD.size, "mpi": MPI.get_vendor()[0], **found}))


if __name__ == "__main__":
    main()
