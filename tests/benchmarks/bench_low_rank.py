"""Time PowerSGD's compression of ResNet-18 against the BLAS products it replaces.

    python tests/benchmarks/bench_low_rank.py [--quick]

Every matrix of the model (1-D tensors are sent as they are) is compressed once a round, as a training step does it, so
the large ones come from memory and not from the cache. The products of NumPy's BLAS get u = memory + grad ready made
and leave out the orthogonalisation; rounds alternate on one core. The project's aim is at most 1.3 times their time
without memory.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when NumPy is loaded

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from mpicomp.ops import cpu

ROUNDS = 9
RANKS = (1, 2, 4, 8, 16, 32)


def resnet18() -> list[tuple[int, int]]:
    """(rows, columns) of the 21 matrices: convolutions as (out, in * kernel * kernel), then the classifier."""
    shapes, inputs = [(64, 3 * 49)], 64
    for outputs in (64, 128, 256, 512):
        first = (outputs, inputs * 9)
        shapes += [first, *[(outputs, outputs * 9)] * 3]
        if inputs != outputs:
            shapes.append((outputs, inputs))  # the shortcut
        inputs = outputs
    return [*shapes, (1000, 512)]


class Model:
    """One gradient, memory, and pair of factors a matrix."""

    def __init__(self, rank: int) -> None:
        rng = np.random.default_rng(1)
        self.parts = []
        for rows, columns in resnet18():
            memory, grad, out = rng.standard_normal((3, rows * columns), dtype=np.float32)
            p, q = (rng.standard_normal(size * rank, dtype=np.float32) for size in (rows, columns))
            self.parts.append((rows, rank, memory, grad, memory + grad, p, q, out))

    def compress(self) -> None:
        for rows, _, _, grad, _, p, q, _ in self.parts:
            self._compress_one(None, grad, rows, p, q)

    def compress_with_memory(self) -> None:
        for rows, _, memory, grad, _, p, q, _ in self.parts:
            self._compress_one(memory, grad, rows, p, q)

    @staticmethod
    def _compress_one(memory, grad, rows, p, q) -> None:
        cpu.project(memory, grad, [(0, grad.size, rows, p.size // rows)], q, p)
        cpu.orthogonalise(p, [(0, 0, rows, p.size // rows)])
        cpu.project_back(memory, grad, [(0, grad.size, rows, p.size // rows)], p, q)

    def blas(self) -> None:
        for rows, rank, _, _, u, p, q, _ in self.parts:
            matrix, p, q = u.reshape(rows, -1), p.reshape(rows, rank), q.reshape(-1, rank)
            np.matmul(matrix, q, out=p)
            np.matmul(matrix.T, p, out=q)
            q *= np.float32(1e-3)  # not orthonormal: without this, values grow from round to round

    def product(self) -> None:
        for rows, _, _, _, _, p, q, out in self.parts:
            cpu.low_rank_product(p, q, [(0, out.size, rows, p.size // rows)], out)

    def blas_product(self) -> None:
        for rows, rank, _, _, _, p, q, out in self.parts:
            np.matmul(p.reshape(rows, rank), q.reshape(-1, rank).T, out=out.reshape(rows, -1))


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def report(ranks: tuple[int, ...], number_of_rounds: int) -> None:
    elements = sum(rows * columns for rows, columns in resnet18())
    print(f"PowerSGD on ResNet-18: {len(resnet18())} matrices, {elements} float32, one core, {cpu.isa()}, medians of "
          f"{number_of_rounds} alternating rounds, ms")
    print(f"{'rank':>4}{'compress':>10}{'+ memory':>10}{'BLAS':>8}{'ratio':>7}{'product':>10}{'BLAS':>8}{'ratio':>7}")
    for rank in ranks:
        model = Model(rank)
        calls = (model.blas, model.compress, model.compress_with_memory, model.product, model.blas_product)
        rounds = [[seconds(call) for call in calls] for _ in range(number_of_rounds)]
        blas, plain, memory, product, blas_product = (1e3 * statistics.median(t) for t in zip(*rounds, strict=True))
        print(f"{rank:4}{plain:10.2f}{memory:10.2f}{blas:8.2f}{plain / blas:7.2f}"
              f"{product:10.2f}{blas_product:8.2f}{product / blas_product:7.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one rank, one round: a try-out, not a figure")
    quick = parser.parse_args().quick
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    report(*((RANKS[:1], 1) if quick else (RANKS, ROUNDS)))
