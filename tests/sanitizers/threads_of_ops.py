"""Threads in the compiled operations, for ThreadSanitizer (sanitize.py): teams, helper threads, and ranks as threads.

The ranks of a node are processes, which no sanitizer sees together. Their protocol does not know that: here threads of
one process play the ranks on one piece of memory, so that what is read before it was published is found.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import numpy as np

from mpicomp.ops import _cpu, cpu
from mpicomp.ops.node_shared import LINE_BYTES, NodeWindow

SLOT_BYTES, DEPTH, TURNS = 4096, 2, 12


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run ``work(0)``, ... in threads; raise what one of them raised."""
    errors: list[BaseException] = []

    def one(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def ranks_of_a_node(size: int) -> None:
    """All-reduces of different lengths by ranks that share a window, from private and from shared memory."""
    control = -(-LINE_BYTES * size // 4096) * 4096
    memory = np.zeros(control + (1 + size) * DEPTH * SLOT_BYTES + 4096, np.uint8)
    base = -(-memory.ctypes.data // 4096) * 4096
    shared = np.zeros(2 * size * 5000, np.float64)  # a segment that all "map"
    segments = [0, shared.ctypes.data]
    rng = np.random.default_rng()
    lengths = rng.integers(0, 5000, TURNS).tolist()
    inputs = [rng.integers(-9, 9, (size, n)).astype(np.float64) for n in lengths]

    def rank(me: int) -> None:
        window = NodeWindow(base, me, size, size, control, SLOT_BYTES, DEPTH, 0)
        for turn, x in enumerate(inputs):
            send, receive, places = x[me].copy(), np.empty(x.shape[1]), [(-1, 0), (-1, 0)]
            if turn % 2:
                at = [2 * me * 5000, (2 * me + 1) * 5000]
                send, receive = (shared[begin : begin + x.shape[1]] for begin in at)
                send[:] = x[me]
                places = [(1, 8 * begin) for begin in at]
            window.past_caches = (turn + me) % 3 == 0
            window.run("allreduce", "sum", "float64", send, receive, *places, segments, False, 1.0, lambda: None)
            assert np.array_equal(receive, x.sum(axis=0)), (me, turn)

    in_threads(size, rank)


def helper_threads(count: int) -> None:
    """Work of a helper thread and its caller at the same time: every operation on arrays of their own."""

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for turn in range(20):
            x = rng.standard_normal(3000).astype(np.float32)
            chosen = cpu.top_k(None, x, [(0, x.size)], [50])
            values = np.empty(50, np.float32)
            cpu.gather(None, x, chosen, values)
            assert np.array_equal(values, x[chosen])
            packed = np.empty(-(-3000 // 8), np.uint8)
            cpu.pack_signs(x, packed)
            assert cpu.uniform(64, 0, cpu.Key(1, turn, number)).size == 64
            out = np.empty(50, chosen.dtype)
            gaps = np.empty(-(-50 * 12 // 8), np.uint8)
            cpu.pack_gaps(chosen, 12, gaps)
            cpu.unpack_gaps(gaps, 12, 3000, out)
            assert np.array_equal(out, chosen)
            cpu.add(x, x.copy())
            assert cpu.count_nonfinite(x) == (0, -1)

    in_threads(count, work)


def teams(count: int) -> None:
    """Long arrays, each on a team of threads, for which callers in several threads compete."""
    n = 9 * (1 << 16) + 5

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for _ in range(2):
            memory, grad = rng.standard_normal((2, n)).astype(np.float32)
            chosen = cpu.top_k(memory, grad, [(0, n)], [n // 3])
            values = np.empty(chosen.size, np.float32)
            cpu.gather(memory, grad, chosen, values)
            cpu.masked_update(memory, grad, chosen, values, 0.5)
            found, sums = cpu.add_lists([chosen, chosen], [values, values], n)
            assert np.array_equal(found, chosen) and np.array_equal(sums, 2 * values)
            bitmap, back = np.empty(-(-n // 8), np.uint8), np.empty_like(chosen)
            cpu.pack_bitmap(chosen, n, bitmap)
            cpu.unpack_bitmap(bitmap, n, back)
            assert np.array_equal(back, chosen) and cpu.common(back, chosen)[0].size == chosen.size
            gaps = np.empty(-(-chosen.size * 20 // 8), np.uint8)
            cpu.pack_gaps(chosen, 20, gaps)
            cpu.unpack_gaps(gaps, 20, n, back)
            assert np.array_equal(back, chosen)
            cpu.bin_select(memory, grad, [(0, n)], 50)
            cpu.moments(memory, grad, [(0, n)], 0.5)
            cpu.add(grad, memory)

    _cpu.force_threads(4)
    in_threads(count, work)
    _cpu.force_threads(0)


if __name__ == "__main__":
    for size in (2, 3, 4):
        ranks_of_a_node(size)
    helper_threads(4)
    for callers in (1, 3):
        teams(callers)
    print(f"threads played 2, 3 and 4 ranks, 4 helpers and teams of 4 (process {os.getpid()})", flush=True)
    sys.exit(0)
