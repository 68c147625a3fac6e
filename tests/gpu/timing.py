"""Times of work on a GPU, without what Python needs to queue it.

Behind copies that keep the device busy, all calls of a batch are queued before the first begins; CUDA events around the
batch then see the device's time alone. What a call asks the device for, and would wait for, is answered as at first.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mpicomp.ops.gpu import cuda_runtime

ROUNDS, LEAST_ROUNDS = 9, 3
BATCH = 10
LONG = 5e-3  # seconds of a call: from then on a batch is one call
PATIENCE = 1.0  # seconds that all rounds may take together
BUSY_BYTES = 256 << 20


class Remembering:
    """The CUDA runtime with host copies remembered: calls on set `of` get them again, in order, from `at` = 0."""

    inner: Any = None

    def __init__(self) -> None:
        self._answers: dict[int, list[Any]] = {}
        self.of = self.at = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def to_host(self, array: Any) -> Any:
        answers = self._answers.setdefault(self.of, [])
        if self.at == len(answers):
            answers.append(self.inner.to_host(array))
        self.at += 1
        return answers[self.at - 1].copy()


@contextmanager
def remembered() -> Iterator[Remembering]:
    """Within the block, only the first call on each set waits for the device."""
    remembering = Remembering()
    remembering.inner = cuda_runtime.use(remembering)
    try:
        yield remembering
    finally:
        cuda_runtime.use(remembering.inner)


class Busy:
    """Copies that keep a device at work, on the current stream; they leave nothing of other arrays in its cache."""

    def __init__(self, xp: Any, nbytes: int = BUSY_BYTES) -> None:
        self._xp, self._arrays = xp, xp.zeros((2, nbytes), xp.uint8)
        self.for_(0)
        begin, end = xp.cuda.Event(), xp.cuda.Event()
        begin.record()
        for _ in range(BATCH):
            self._copy()
        end.record()
        end.synchronize()
        self._each = max(xp.cuda.get_elapsed_time(begin, end) * 1e-3 / BATCH, 1e-6)

    def _copy(self) -> None:
        self._xp.copyto(*self._arrays)

    def for_(self, seconds: float) -> None:
        for _ in range(1 + math.ceil(seconds / self._each) if seconds else 1):
            self._copy()


def seconds(xp: Any, call: Callable[[Any], Any], arrays: list[Any], busy: Busy) -> tuple[float, bool]:
    """Seconds of one call on the device, the arrays in turn: median of batches; and True if all were queued ahead."""
    with remembered() as host:

        def batch(count: int) -> None:
            for i in range(count):
                host.of, host.at = i % len(arrays), 0
                call(arrays[i % len(arrays)])

        batch(2 * len(arrays))  # kernels are compiled, memory is taken, answers are remembered
        queueing, whole = _by_clock(xp, lambda: batch(1))
        count = 1 if whole > LONG else BATCH
        queueing, whole = _by_clock(xp, lambda: batch(count))
        times, ahead = [], True
        for _ in range(max(LEAST_ROUNDS, min(ROUNDS, int(PATIENCE / whole)))):
            busy.for_(2 * queueing + 1e-3)
            begin, end = xp.cuda.Event(), xp.cuda.Event()
            begin.record()
            batch(count)
            end.record()
            ahead = ahead and not begin.done
            end.synchronize()
            times.append(xp.cuda.get_elapsed_time(begin, end) * 1e-3 / count)
    return statistics.median(times), ahead


def _by_clock(xp: Any, call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds until a call returns, and until the device is done as well."""
    stream = xp.cuda.get_current_stream()
    stream.synchronize()
    start = time.perf_counter()
    call()
    queued = time.perf_counter() - start
    stream.synchronize()
    return queued, max(time.perf_counter() - start, 1e-6)


def wall(call: Callable[[], Any]) -> float:
    """Seconds of a call that ends when all is done: the median of some."""
    call()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
