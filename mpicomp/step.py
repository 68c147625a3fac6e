"""What the parts of a scheme can ask for during one step: communicator, operations, scratch, phases, means."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import numpy as np

from .values import Array


class Step:
    """The context of a reducer's steps. One a reducer; ``begin`` starts the next step.

    Attributes
    ----------
    comm : Comm
    ops : module
        The operations of the device the gradients are on.
    number : int
        The step's number, from 0.
    n, dtype
        Elements of one worker's vector, and their type.
    spans : list of (int, int)
        The parts a selector treats separately.
    workers : list of int
        Virtual workers on each rank.
    seconds : dict
        Seconds of each phase of the step so far.
    """

    def __init__(self, comm: Any, workers: list[int], selector: Any, codec: Any, algorithm: str, trace: Any) -> None:
        self.comm, self.selector, self.codec, self.algorithm, self.trace = comm, selector, codec, algorithm, trace
        self.workers = workers
        self.total_workers = sum(workers)
        self._ends = list(accumulate(workers))
        self._scratch: dict[str, Array] = {}
        self._spans: list[tuple[str, int, int]] = []
        self.number, self.seconds = -1, {}
        self.ops, self.n, self.spans, self.dtype = None, 0, [], None

    def begin(self, number: int, bucket: Any, spans: list[tuple[int, int]]) -> None:
        self.number, self.spans, self.seconds = number, spans, {}
        self._spans.clear()
        self.ops, self.n, self.dtype = bucket.ops, bucket.n, bucket.compute

    def owner(self, worker: int) -> tuple[int, int]:
        """The rank that holds a worker, and the worker's place there."""
        rank = bisect_right(self._ends, worker)
        return rank, worker - (self._ends[rank] - self.workers[rank])

    def scratch(self, key: str, n: int, dtype: Any) -> Array:
        """An array of ``n`` elements kept from step to step under ``key``; its contents are not defined."""
        return self._kept(key, n, dtype, self.ops.empty)

    def zeroed(self, key: str, n: int, dtype: Any) -> Array:
        """As ``scratch``, but zero at first; the user leaves it zero."""
        return self._kept(key, n, dtype, self.ops.zeros)

    def _kept(self, key: str, n: int, dtype: Any, make: Any) -> Array:
        array = self._scratch.get(key)
        if array is None or array.size != n or array.dtype != dtype:
            array = self._scratch[key] = make(n, dtype)
        return array

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time of a block to a phase of the step."""
        start = time.monotonic_ns()
        yield
        self._spent(phase, start)

    def pieces(self, phase: str, work: Iterator[None]) -> Iterator[None]:
        """``work``, its time added to a phase piece by piece."""
        self.seconds.setdefault(phase, 0.0)
        start = time.monotonic_ns()
        for _ in work:
            self._spent(phase, start)
            yield
            start = time.monotonic_ns()

    def _spent(self, phase: str, start: int) -> None:
        stop = time.monotonic_ns()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + (stop - start) * 1e-9
        if self.trace is not None:
            self._spans.append((phase, start, stop))

    def record(self) -> None:
        """Hand the step's phases to the trace, all at once: that costs less than one by one."""
        self.trace.spans(self.number, self._spans)
        self._spans.clear()

    def mean_of(self, values: list[Array], consume: bool = False) -> Array:
        """The mean over all workers of all ranks of equally long vectors, one a local worker.

        Added on this rank first (so one worker's codes are all-reduced in the codec's precision, several workers'
        sum in the values' own). ``consume`` allows the first vector to be overwritten and returned.
        """
        dtype = values[0].dtype
        if len(values) == 1 and self.codec.dtype(dtype) != dtype:
            wire = self.codec.encode(values[0], self.ops)
        else:
            wire = values[0] if consume else values[0].copy()
        for other in values[1:]:
            self.ops.add(wire, other)
        self.comm.allreduce_in_place(wire, self.algorithm)
        return self.scale(self.codec.decode(wire, dtype, self.ops))

    def scale(self, total: Array) -> Array:
        """A sum over all workers turned into their mean, in place."""
        self.ops.scale(total, 1.0 / self.total_workers)
        return total


def workers_of_all(comm: Any, workers: int) -> list[int]:
    """How many virtual workers each rank holds (collective)."""
    flat, _ = comm.gather_to_all(np.array([workers], np.int64))
    return flat.tolist()
