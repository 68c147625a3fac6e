"""What the parts of a scheme can ask for during one step: communicator, operations, scratch, phases, means."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from .._util.partition import chunk_count, pieces
from ..types import Array, Compensated, Place, overlap
from .workers import Workers

# A dense vector on the host goes in equal parts of at most about so many bytes, each an all-reduce of its own: long
# enough for a ring over hosts to be near its best, short enough that copies hide. They begin at multiples of ALIGNED.
BUCKET_BYTES = 16 << 20
ALIGNED = 64
# By itemsize: sums, norms and products of smaller magnitudes are finite, whatever the number of elements and workers.
ROOM = {4: 1e30, 8: 1e140}
# By result dtype: the largest finite magnitude, and the least that rounds to infinity.
RESULTS = {"float16": (65504.0, 65520.0), "bfloat16": ((2 - 2**-7) * 2.0**127, (2 - 2**-8) * 2.0**127)}


class Misfits(NamedTuple):
    """Values that a narrower dtype cannot hold: their ascending positions, the largest it can hold, and what is left.
    """

    positions: Array
    held: Array
    excess: Array


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
    workers : Workers
        Virtual workers of all ranks; ``first_worker`` is the number of this rank's first.
    selector, codec
        Parts of the scheme that its exchange asks.
    remembers : bool
        Whether a memory, or who measures this step, reads what was sent.
    plain : bool
        Whether the scheme is a plain average, which keeps nothing and is no larger than the largest gradient.
    limit : float
        Magnitudes of u from here on are refused, as NaN is; infinity for plain averages.
    result : (float, float) or None
        If the result's dtype is narrower than ``dtype``: its largest number, and the least that becomes infinite.
    target : array or None
        Where a dense mean may be written once all ranks have agreed: the gradient's own memory, or none of it.
    seconds : dict
        Seconds of each phase of the step so far.
    """

    def __init__(self, comm: Any, workers: Workers, parts: Any, seed: int, algorithm: str, trace: Any) -> None:
        self.comm, self.algorithm, self.trace = comm, algorithm, trace
        self.selector, self.codec, self.schedule = parts.selector, parts.codec, parts.schedule
        self.remembers = any(memory.remembers for memory in parts.memories)
        self.plain = not self.remembers and parts.codec.name == "float" and parts.exchange.name == "dense"
        self.workers = workers
        if hasattr(self.codec, "check_workers"):  # the same on all ranks, and nothing is on its way yet
            self.codec.check_workers(workers.total)
        self.total_workers, self.first_worker = workers.total, workers.first(comm.rank)
        self._seed = seed
        self._scratch: dict[str, Array] = {}
        self._layout: dict[Any, Any] = {}
        self._of_lists: dict[Any, tuple[Array, Any]] = {}
        self._phases: list[tuple[str, int, int]] = []
        self._densities: list[float | None] = []
        self._in_flight: list[Any] = []
        self.number, self.n, self.limit = -1, 0, math.inf
        self.result: tuple[float, float] | None = None
        self.target: Array | None = None
        self.seconds: dict[str, float] = {}
        self.spans: list[tuple[int, int]] = []
        self.tensors: list[tuple[int, int, tuple[int, ...]]] = []
        self.ops: Any = None
        self.dtype: Any = None

    def on_rank(self, comm: Any, parts: Any) -> Step:
        """A fresh step of another rank, one worker each, for simulations: it shares what the layout alone decides."""
        other = copy(self)
        other.comm, other.first_worker = comm, comm.rank
        other.selector, other.codec, other.schedule = parts.selector, parts.codec, parts.schedule
        other._scratch, other._of_lists, other._phases, other.seconds, other._in_flight = {}, {}, [], {}, []
        return other

    def begin(self, number: int, bucket: Any, spans: list[tuple[int, int]], densities: list[float | None]) -> None:
        self.number, self.spans, self.seconds = number, spans, {}
        self._phases.clear()
        self._of_lists.clear()
        self._densities = densities
        self.ops, self.n, self.dtype, self.tensors = bucket.ops, bucket.n, bucket.compute, bucket.tensors
        self.limit = math.inf if self.plain else ROOM[self.dtype.itemsize]
        self.result = RESULTS.get(bucket.dtype_name)

    def density(self, target: float, span: int) -> float:
        """The density of a span in this step, where ``target`` is the scheme's: by the caller's wish, the schedule."""
        own = self._densities[span]
        return self.schedule.density(target if own is None else own, span, self.number)

    def place(self, local: int, indices: Array | None) -> Place:
        """Where the values of one of this rank's workers stand."""
        return Place(self.first_worker + local, indices, 0, self.n)

    def key(self, worker: int) -> Any:
        """Whose random numbers: a worker's in this step. Numbers from ``total_workers`` on are for ranks."""
        return self.ops.Key(self._seed, self.number, worker)

    # -- arrays

    def scratch(self, key: str, n: int, dtype: Any) -> Array:
        """An array of ``n`` elements kept from step to step under ``key``; its contents are not defined."""
        array = self._scratch.get(key)
        if array is None or array.size != n or array.dtype != dtype:
            array = self._scratch[key] = self.ops.empty(n, dtype)
        return array

    def kept(self, key: Any, make: Any) -> Any:
        """What ``make()`` gave the first time; for what depends on the layout alone."""
        if key not in self._layout:
            self._layout[key] = make()
        return self._layout[key]

    def of_list(self, key: Any, indices: Array, make: Any) -> Any:
        """What ``make()`` gave in this step when last asked under ``key``, if that was of this very list."""
        held, made = self._of_lists.get(key, (None, None))
        if held is not indices:
            made = make()
            self._of_lists[key] = indices, made
        return made

    def whole(self, u: Compensated, key: str) -> Array:
        """u as one array, which the caller may overwrite; kept under ``key``."""
        return u.copy_to(self.scratch(key, u.n, u.gradient.dtype), self.ops)

    def read(self, u: Compensated, indices: Array | None) -> tuple[Array, int]:
        """The values of u that were selected, and how many of u's are to be refused: by these, where they show it."""
        values, found = u.counted_at(indices, self.ops, self.limit)
        return values, found if self.selector.finds_nonfinite else self.overflows(u)

    def overflows(self, u: Compensated) -> int:
        """How many elements of u are not finite, or too large for what is to be computed of them."""
        return self.ops.count_beyond(*u, self.limit)

    def misfits(self, values: Array) -> Misfits | None:
        """The ``values`` that become infinite in the result's dtype; None if there are none."""
        if self.result is None:
            return None
        largest, least = self.result
        positions = self.ops.threshold(None, values, least)
        if not positions.size:
            return None
        excess = Compensated(None, values).at(positions, self.ops)
        held = excess.clip(-largest, largest)
        self.ops.axpby(excess, 1.0, excess, -1.0, held)
        return Misfits(positions, held, excess)

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

    def decode_into(self, values: Array, codes: Array, place: Place) -> None:
        """Write what a receiver reads into ``values``."""
        if getattr(self.codec, "writes", False):
            self.codec.decode_into(values, codes, place, self)
        else:
            values[:] = self.codec.decode(codes, place, self)

    def mean_of(self, codes: list[Array], place: Place, consume: bool = False) -> Array:
        """The mean over all workers of all ranks of equally long vectors of addable codes, one a local worker.

        Added on this rank first: one worker's codes are all-reduced as they are; of several workers' floats the sum
        travels in the dtype of computation, from all ranks where any has several. ``consume`` allows the first array
        to be overwritten and returned.
        """
        coded = self.workers.most == 1 or self.codec.shares_scale
        first, *others = codes if coded else [self.codec.decode(one, place, self) for one in codes]
        wire = first if consume else self.ops.empty(first.size, first.dtype)

        def part(begin: int, end: int) -> Array:
            here = wire[begin:end]
            if not consume:
                here[:] = first[begin:end]
            for other in others:
                self.ops.add(here, other[begin:end])
            return here

        target = wire if wire.dtype == self.dtype else None
        return self.start_mean(first, part, place if coded else None, target)()

    def mean_from(self, values: Array, target: Array) -> Array:
        """The mean over all ranks' ``values``, of one worker each, written into ``target``, which may be these."""
        factor = 1.0 / self.total_workers
        if overlap(values, target):
            self.comm.allreduce_in_place(target, self.algorithm, factor=factor)
        else:
            self.comm.allreduce_from(values, target, self.algorithm, factor)
        return target

    def start_mean(self, like: Array, part: Callable[[int, int], Array], place: Place | None = None,
                   target: Array | None = None, beside: bool = False,
                   source: Array | None = None) -> Callable[[], Array]:
        """Begin to average a dense vector over all workers, in buckets that are in flight at once (collective).

        While one bucket is on its way, the next is made and the one before is read.

        Parameters
        ----------
        like : array
            As long, and on the same device, as what travels.
        part : function of (begin, end)
            This rank's sum of its workers' elements, which may be overwritten: asked for once, in order.
        place : Place, optional
            Of the whole vector, where codes travel; else values do.
        target : array, optional
            Receives the mean; may be what the parts are views of.
        beside : bool
            Whether something else follows before the result is asked for: then even a short vector is in flight.
        source : array, optional
            One worker's values, which stay: the parts are room for the mean and hold nothing yet. Only without codes.

        Returns
        -------
        A function that gives the mean, to be called once.
        """
        cuts, kind, started = self.cuts(like), self.codec.kind if place else None, []
        plain = place is None or self.sends_as_it_is
        factor = 1.0 / self.total_workers if plain else 1.0  # else codes are decoded first
        if len(cuts) > 1 or beside:
            for begin, end in cuts:
                wire, own = part(begin, end), None if source is None else source[begin:end]
                started.append((wire, self.comm.start_allreduce(wire, self.algorithm, kind, factor, own)))
                self._in_flight.append(started[-1][1])

        def read(wire: Array, begin: int, end: int) -> Array:
            return wire if place is None or plain else self.scale(self.codec.decode(wire, place.part(begin, end), self))

        def finish() -> Array:
            if not started and source is not None:
                return self.mean_from(source, part(0, like.size))
            if not started:
                wire = part(0, like.size)
                self.comm.allreduce_in_place(wire, self.algorithm, kind=kind, factor=factor)
                return read(wire, 0, like.size)
            mean = self.ops.empty(like.size, self.dtype) if target is None else target
            for (begin, end), (wire, request) in zip(cuts, started, strict=True):
                self._land(request)
                values, here = read(wire, begin, end), mean[begin:end]
                if not overlap(values, here):
                    here[:] = values
            return mean

        return finish

    def settle(self) -> None:
        """Wait for all that is in flight, after an error: the next step uses its memory, and counts its bytes anew."""
        while self._in_flight:
            self._land(self._in_flight[0])

    def _land(self, request: Any) -> None:
        self._in_flight.remove(request)
        self.comm.wait_for(request)

    @property
    def sends_as_it_is(self) -> bool:
        """Whether the codec leaves values as they are, in the dtype of computation."""
        return self.codec.name == "float" and self.codec.dtype(self.dtype) == self.dtype

    def cuts(self, like: Array) -> list[tuple[int, int]]:
        """Where the buckets of a dense vector begin and end, about equally long, the same on all ranks; only one where
        none can be in flight.
        """
        count = chunk_count(like.size * self.dtype.itemsize, BUCKET_BYTES)
        if count < 2 or not isinstance(like, np.ndarray) or not self.comm.flies:
            return [(0, like.size)]
        length = ALIGNED * chunk_count(like.size, ALIGNED * count)
        return list(pieces(0, like.size, length))

    def scale(self, total: Array) -> Array:
        """A sum over all workers turned into their mean, in place."""
        self.ops.scale(total, 1.0 / self.total_workers)
        return total
