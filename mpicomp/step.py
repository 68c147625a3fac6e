"""What the parts of a scheme can ask for during one step: communicator, operations, scratch, phases, means."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from itertools import accumulate
from typing import Any

import numpy as np

from .values import Array, Compensated, Place


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
        Elements of one worker's vector that the scheme treats, and their type.
    spans : list of (int, int)
        The parts a selector treats separately.
    tensors : list of (int, int, shape)
        Where each array lies in the vector, whether or not they are treated separately.
    workers : list of int
        Virtual workers on each rank; ``first_worker`` is the number of this rank's first.
    selector, codec
        Parts of the scheme that its exchange asks.
    remembers : bool
        Whether a memory, or who measures this step, reads what was sent.
    seconds : dict
        Seconds of each phase of the step so far.
    """

    def __init__(self, comm: Any, workers: list[int], parts: Any, seed: int, algorithm: str, trace: Any) -> None:
        self.comm, self.algorithm, self.trace = comm, algorithm, trace
        self.selector, self.codec, self.schedule = parts.selector, parts.codec, parts.schedule
        self.remembers = any(memory.remembers for memory in parts.memories)
        self.workers = workers
        self.total_workers = sum(workers)
        self._ends = list(accumulate(workers))
        self.first_worker = self._ends[comm.rank] - workers[comm.rank]
        self._seed = seed
        self._scratch: dict[str, Array] = {}
        self._phases: list[tuple[str, int, int]] = []
        self._densities: list[float | None] = []
        self.number, self.seconds = -1, {}
        self.ops, self.n, self.spans, self.tensors, self.dtype = None, 0, [], [], None

    def on_rank(self, comm: Any, parts: Any) -> Step:
        """A fresh step of another rank with one worker, as all have: for simulations, which make very many."""
        other = copy(self)
        other.comm, other.first_worker = comm, comm.rank
        other.selector, other.codec, other.schedule = parts.selector, parts.codec, parts.schedule
        other._scratch, other._phases, other.seconds = {}, [], {}
        return other

    def begin(self, number: int, bucket: Any, spans: list[tuple[int, int]], densities: list[float | None]) -> None:
        self.number, self.spans, self.seconds = number, spans, {}
        self._phases.clear()
        self._densities = densities
        self.ops, self.n, self.dtype, self.tensors = bucket.ops, bucket.n, bucket.compute, bucket.tensors

    def density(self, target: float, span: int) -> float:
        """The density of a span in this step, where ``target`` is the scheme's: by the caller's wish, the schedule."""
        own = self._densities[span]
        return self.schedule.density(target if own is None else own, span, self.number)

    def owner(self, worker: int) -> tuple[int, int]:
        """The rank that holds a worker, and the worker's place there."""
        rank = bisect_right(self._ends, worker)
        return rank, worker - (self._ends[rank] - self.workers[rank])

    def place(self, local: int, indices: Array | None) -> Place:
        """Where the values of one of this rank's workers stand."""
        return Place(self.first_worker + local, indices, 0, self.n)

    def key(self, worker: int) -> Any:
        """Whose random numbers: a worker's in this step. Numbers from ``total_workers`` on are for ranks."""
        return self.ops.Key(self._seed, self.number, worker)

    # -- arrays

    def scratch(self, key: str, n: int, dtype: Any) -> Array:
        """An array of ``n`` elements kept from step to step under ``key``; its contents are not defined."""
        return self._kept(key, n, dtype, lambda n, dtype: self.ops.empty(n, dtype))

    def zeroed(self, key: str, n: int, dtype: Any) -> Array:
        """As ``scratch``, but zero at first; the user leaves it zero."""
        return self._kept(key, n, dtype, lambda n, dtype: self.ops.zeros(n, dtype))

    def kept(self, key: Any, make: Any) -> Any:
        """What ``make()`` gave the first time; for what depends on the layout alone."""
        if key not in self._scratch:
            self._scratch[key] = make()
        return self._scratch[key]

    def _kept(self, key: str, n: int, dtype: Any, make: Any) -> Array:
        array = self._scratch.get(key)
        if array is None or array.size != n or array.dtype != dtype:
            array = self._scratch[key] = make(n, dtype)
        return array

    def whole(self, u: Compensated, key: str) -> Array:
        """u as one array, which the caller may overwrite; kept under ``key``."""
        values = self.scratch(key, u.n, u.gradient.dtype)
        values[:] = u.gradient
        if u.memory is not None:
            self.ops.add(values, u.memory)
        return values

    def add_at(self, total: Array, indices: Array | None, values: Array) -> None:
        """``total[indices] += values``, everywhere where indices is None."""
        if indices is None:
            self.ops.add(total, values)
        else:
            self.ops.scatter_add(total, indices, values)

    # -- phases

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time of a block to a phase of the step."""
        start, trace = time.monotonic_ns(), self.trace
        if trace is not None:  # not set back after an error: the step's events tell more than its end
            around, trace.doing = trace.doing, (phase, self.number, start)
        yield
        if trace is not None:
            trace.doing = around
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
            self._phases.append((phase, start, stop))

    def record(self) -> None:
        """Hand the step's phases to the trace, all at once: that costs less than one by one."""
        self.trace.spans(self.number, self._phases)
        self._phases.clear()

    # -- adding up over workers

    def encode_together(self, values: list[Array], places: list[Place]) -> list[Array]:
        """Each worker's codes, to be added to all others': by one scale where the codec needs that."""
        if self.codec.shares_scale:
            peak = np.array([self.codec.peak(values, self)], np.float64)
            self.comm.allreduce_in_place(peak, "native", "max")
            self.codec.share(float(peak[0]), self)
        return [self.codec.encode(one, place, self) for one, place in zip(values, places, strict=True)]

    def mean_of(self, codes: list[Array], place: Place, consume: bool = False) -> Array:
        """The mean over all workers of all ranks of equally long vectors of addable codes, one a local worker.

        Added on this rank first: one worker's codes are all-reduced as they are; of several workers' floats the sum
        travels in the dtype of computation. ``consume`` allows the first array to be overwritten and returned.
        """
        alone = len(codes) == 1
        if alone or self.codec.shares_scale:
            wire = codes[0] if consume else codes[0].copy()
            for other in codes[1:]:
                self.ops.add(wire, other)
            self.comm.allreduce_in_place(wire, self.algorithm, kind=self.codec.kind)
            return self.scale(self.codec.decode(wire, place, self))
        values = [self.codec.decode(one, place, self) for one in codes]
        total = values[0] if consume else values[0].copy()
        for other in values[1:]:
            self.ops.add(total, other)
        self.comm.allreduce_in_place(total, self.algorithm)
        return self.scale(total)

    def scale(self, total: Array) -> Array:
        """A sum over all workers turned into their mean, in place."""
        self.ops.scale(total, 1.0 / self.total_workers)
        return total


def workers_of_all(comm: Any, workers: int) -> list[int]:
    """How many virtual workers each rank holds (collective)."""
    flat, _ = comm.gather_to_all(np.array([workers], np.int64))
    return flat.tolist()
