"""Time the CPU primitives against a plain copy of the same arrays: ``python tests/bench_ops.py [n]``.

Each op and the copy alternate in one run on one core, and medians are compared, so that a neighbour on the
machine slows both. "must move" counts the bytes that have to be read and written once; the copy counts the same
way, so 100 % is an op that costs no more than moving its data.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from mpicomp.ops import cpu

ROUNDS = 9
DENSITY = 0.001


def cases(n: int) -> list[tuple[str, int, Callable[[], object]]]:
    """(name, bytes that must move, call) of every op on float32 vectors of n elements."""
    rng = np.random.default_rng(1)
    memory, grad = rng.standard_normal((2, n), dtype=np.float32)
    nxt, half = np.empty_like(grad), np.empty(n, np.uint16)
    positions = np.empty(-(-n // 112), np.uint8)
    cpu.chunk_max(memory, grad, 112, positions)
    indices = np.empty(len(positions), np.int32)
    cpu.chunk_indices(positions, 112, n, indices)
    values = np.empty(len(indices), np.float32)
    cpu.gather(memory, grad, indices, values)
    k, lam = int(n * DENSITY), 4.65  # |N(0, 2)| exceeds 4.65 with probability 0.001
    small = np.empty(-(-n // 10), np.uint8)
    large = np.empty(-(-n // 1000), np.uint16)
    line = 64 * len(indices)  # a sparse access moves a whole cache line
    table, projected = np.empty(5 << 16, np.float32), np.empty(-(-n // 1024) * 4, np.float32)
    large_table = np.empty(5 << 20, np.float32)
    rows = np.arange(0, n // 1024, 100, dtype=np.int32)
    return [
        ("chunk_max C=112", 8 * n, lambda: cpu.chunk_max(memory, grad, 112, positions)),
        ("chunk_max C=112, no memory", 4 * n, lambda: cpu.chunk_max(None, grad, 112, positions)),
        ("chunk_max C=10", 8 * n, lambda: cpu.chunk_max(memory, grad, 10, small)),
        ("chunk_max C=1000", 8 * n, lambda: cpu.chunk_max(memory, grad, 1000, large)),
        ("chunk_indices", 5 * len(indices), lambda: cpu.chunk_indices(positions, 112, n, indices)),
        ("threshold 0.1 %", 8 * n, lambda: cpu.threshold(memory, grad, lam)),
        ("threshold 10 %", 8 * n, lambda: cpu.threshold(memory, grad, 2.326)),
        ("top_k 0.1 %", 8 * n, lambda: cpu.top_k(memory, grad, k)),
        ("top_k 10 %", 8 * n, lambda: cpu.top_k(memory, grad, n // 10)),
        ("gather 1/112", 2 * line, lambda: cpu.gather(memory, grad, indices, values)),
        ("scatter 1/112", 2 * line, lambda: cpu.scatter(nxt, indices, values)),
        ("masked_update", 12 * n, lambda: cpu.masked_update(nxt, grad, indices, values, 0.1)),
        ("add", 12 * n, lambda: cpu.add(nxt, grad)),
        ("scale", 8 * n, lambda: cpu.scale(nxt, 0.5)),
        ("narrow float16", 6 * n, lambda: cpu.narrow(half, grad, "float16")),
        ("widen float16", 6 * n, lambda: cpu.widen(nxt, half, "float16")),
        ("narrow bfloat16", 6 * n, lambda: cpu.narrow(half, grad, "bfloat16")),
        ("count_nonfinite", 4 * n, lambda: cpu.count_nonfinite(grad)),
        ("squared_norm", 4 * n, lambda: cpu.squared_norm(grad)),
        ("count_sketch 5 x 2^16", 8 * n, lambda: cpu.count_sketch(memory, grad, 5, 1 << 16, 1, table)),
        ("count_sketch 5 x 2^20", 8 * n, lambda: cpu.count_sketch(memory, grad, 5, 1 << 20, 1, large_table)),
        ("sketch_estimate 5 x 2^16", 4 * n, lambda: cpu.sketch_estimate(table, 5, 1 << 16, 1, nxt)),
        ("sketch_estimate 5 x 2^20", 4 * n, lambda: cpu.sketch_estimate(large_table, 5, 1 << 20, 1, nxt)),
        ("project_rows 1024, width 4", 8 * n, lambda: cpu.project_rows(memory, grad, 1024, 4, 1, projected)),
        ("expand_rows 1 %, of 1024", 4 * 1024 * len(rows), lambda: cpu.expand_rows(rows, 1024, n)),
    ]


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 25_000_000
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    source, target = np.ones(n, np.float32), np.zeros(n, np.float32)

    def copy() -> None:
        np.copyto(target, source)

    print(f"{n} float32, one core, {cpu.isa()}, medians of {ROUNDS} alternating rounds; GB = 1e9 bytes")
    print(f"{'op':28}{'ms':>9}{'must move':>12}{'GB/s':>8}{'copy GB/s':>11}{'% of copy':>11}")
    for name, nbytes, call in cases(n):
        call(), copy()
        rounds = [(seconds(call), seconds(copy)) for _ in range(ROUNDS)]
        op_time, copy_time = (statistics.median(times) for times in zip(*rounds, strict=True))
        rate, copy_rate = nbytes / op_time / 1e9, 8 * n / copy_time / 1e9
        print(f"{name:28}{op_time * 1e3:9.2f}{nbytes / 1e6:9.1f} MB{rate:8.1f}{copy_rate:11.1f}"
              f"{100 * rate / copy_rate:10.0f} %")


if __name__ == "__main__":
    main()
