"""More than 2^31 elements in one all-reduce: what MPI's counts cannot say. ``make test-large``: two ranks, 3 GB each.

Every element of a rank is a small number that depends on its place; the whole vector of sums is looked at.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from mpi4py import MPI

import mpicomp

N = (1 << 31) + 8
BLOCK = 1 << 26  # elements that are looked at together
PERIOD = 7  # the numbers: 0 to 6, and the rank
PATTERN = np.tile(np.arange(PERIOD, dtype=np.int8), BLOCK // PERIOD + 2)


def numbers(start: int, n: int, rank: int) -> np.ndarray:
    place = start % PERIOD
    return PATTERN[place : place + n] + np.int8(rank)


def main(algorithms: list[str]) -> int:
    comm = mpicomp.Comm(MPI.COMM_WORLD)
    x = np.empty(N, np.int8)
    wrong = 0
    for algorithm in algorithms:
        for start in range(0, N, BLOCK):
            x[start : start + BLOCK] = numbers(start, min(BLOCK, N - start), comm.rank)
        begin = time.perf_counter()
        comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
        seconds = time.perf_counter() - begin
        ranks = comm.size * (comm.size - 1) // 2
        bad = sum(int(np.count_nonzero(x[start : start + BLOCK] != comm.size * numbers(start, min(BLOCK, N - start), 0)
                                       + np.int8(ranks))) for start in range(0, N, BLOCK))  # fmt: skip
        everywhere = comm.allreduce(bad)
        wrong += everywhere
        if comm.rank == 0:
            print(f"{algorithm}: {N} x int8 on {comm.size} ranks, {everywhere} wrong, {seconds:.1f} s", flush=True)
    return min(1, wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["native", "ring", "halving_doubling"]))
