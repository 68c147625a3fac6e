"""Values handed from one part of a scheme to the next within a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from .._util.once import Once as Once
from ..ops.arguments import Coded
from ..ops.protocol import Ops
from ..types import Array, overlap

State = dict[str, np.ndarray]  # of a part, by name
Span = tuple[int, int]  # start, stop
Tensor = tuple[int, int, tuple[int, ...]]  # start, stop, shape
Value = TypeVar("Value")


class Compensated(NamedTuple):
    """The compensated gradient u = memory + gradient, which no kernel ever stores.

    ``memory`` is None where nothing was kept back, so that u is the gradient itself.
    """

    memory: Array | None
    gradient: Array

    @property
    def n(self) -> int:
        return self.gradient.size

    def span(self, start: int, stop: int) -> Compensated:
        """The part of u in ``[start, stop)``, without a copy."""
        memory = None if self.memory is None else self.memory[start:stop]
        return Compensated(memory, self.gradient[start:stop])

    def copy_to(self, values: Array, ops: Ops) -> Array:
        """u, written into ``values``."""
        if self.memory is None:
            values[:] = self.gradient
        else:
            ops.axpby(values, 1.0, self.gradient, 1.0, self.memory)
        return values

    def at(self, indices: Array | None, ops: Ops) -> Array:
        """The values of u at ``indices`` (None: all), a fresh array."""
        if indices is None:
            return self.copy_to(ops.empty(self.n, self.gradient.dtype), ops)
        values = ops.empty(indices.size, self.gradient.dtype)
        ops.gather(self.memory, self.gradient, indices, values)
        return values

    def to_read(self, indices: Array | None, ops: Ops) -> Array:
        """Like ``at``, but read-only: the gradient itself if u equals it."""
        return self.gradient if indices is None and self.memory is None else self.at(indices, ops)

    def counted_at(self, indices: Array | None, ops: Ops, limit: float = math.inf) -> tuple[Array, int]:
        """Like ``to_read``, with the number of these values that are not below ``limit`` in magnitude."""
        if indices is None:
            values = self.to_read(None, ops)
            return values, ops.count_beyond(None, values, limit)
        values = ops.empty(indices.size, self.gradient.dtype)
        return values, ops.gather_counted(self.memory, self.gradient, indices, values, limit)


class Sent:
    """The values of one worker on the wire, as the receivers decode them; the rest of u stays in its memory.

    Parameters
    ----------
    indices : array or None
        Ascending; None where every coordinate was sent.
    values : array, or callable
        The values, or a function that decodes them if they are asked for.
    coded : sequence of (int, array or Coded)
        Where every coordinate was sent: each part's first element and its values, for operations that decode them.
    """

    def __init__(self, indices: Array | None, values: Array | Callable[[], Array],
                 coded: Sequence[tuple[int, Array | Coded]] = ()) -> None:
        self.indices, self._values, self._coded = indices, values, coded

    @property
    def values(self) -> Array:
        if callable(self._values):
            self._values = self._values()
        return self._values

    @property
    def coded(self) -> Sequence[tuple[int, Array | Coded]]:
        """The first element of each part and its values, if every coordinate was sent."""
        return self._coded or [(0, self.values)]

    def span(self, start: int, stop: int) -> Array | Coded:
        """The values of a part, or of any other elements if every coordinate was sent."""
        for first, values in self.coded:
            if (first, first + values.size) == (start, stop):
                return values
        return self.values[start:stop]

    def taken_from(self, x: Array, ops: Ops) -> Array:
        """``x`` less what was sent, in place."""
        if self.indices is None:
            ops.axpby(x, 1.0, x, -1.0, self.values)
            return x
        there = Compensated(None, x).at(self.indices, ops)
        ops.axpby(there, 1.0, there, -1.0, self.values)
        ops.scatter(x, self.indices, there)
        return x

    def with_more(self, indices: Array, values: Array, n: int, ops: Ops) -> Sent:
        """This and ``values`` at ascending ``indices`` of ``n`` elements, added up in fresh arrays."""
        if self.indices is not None:
            return Sent(*ops.add_lists([self.indices, indices], [self.values, values], n))
        whole = self.values.copy()
        ops.scatter_add(whole, indices, values)
        return Sent(None, whole)


class Place(NamedTuple):
    """Which values a codec writes or reads: those at ``indices`` of the flat vector, or all of ``[start, stop)``.

    Decides which values share a scale and which random numbers round them; sender and receiver know it alike.
    """

    worker: int  # whose values, counted over all ranks
    indices: Array | None  # ascending
    start: int = 0
    stop: int = 0
    derived: Once | None = None  # values that depend on ``indices``

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The result of the place's first ``make()`` under ``key``; for values that depend on its indices."""
        return make() if self.derived is None else self.derived(key, make)

    @property
    def size(self) -> int:
        return self.stop - self.start if self.indices is None else self.indices.size

    def part(self, begin: int, end: int) -> Place:
        """The place of the values from ``begin`` to ``end``, counted from the first of these."""
        if self.indices is not None:
            return self._replace(indices=self.indices[begin:end], derived=None)
        return self._replace(start=self.start + begin, stop=self.start + end)


class Choice(Protocol):
    """Choice of this rank by itself: an exchange's own value, with the number of elements to refuse, by worker."""

    @property
    def nonfinite(self) -> list[int]: ...


class Message(Protocol):
    """Value that travels, an exchange's own. ``sent`` has one per local worker; None if only ``combine`` knows it."""

    @property
    def sent(self) -> list[Sent] | None: ...


class Mean(NamedTuple):
    """A mean over all workers: ``values`` at ``indices`` (ascending; None: everywhere) of ``n`` elements.

    Examples
    --------
    >>> import numpy as np
    >>> from mpicomp.ops import ops_for
    >>> mean = Mean(np.array([1, 3], np.int32), np.array([0.5, -2.0]), 5)
    >>> mean.dense(ops_for(mean.values)).tolist()
    [0.0, 0.5, 0.0, -2.0, 0.0]
    """

    indices: Array | None
    values: Array
    n: int

    def dense(self, ops: Ops, out: Array | None = None) -> Array:
        """The mean as one array of ``n`` elements, zero where nothing was sent."""
        if self.indices is None:
            if out is None:
                return self.values
            if not overlap(out, self.values):  # else it is there already
                out[:] = self.values
            return out
        if out is None:
            out = ops.zeros(self.n, self.values.dtype)
        else:
            out[:] = 0
        ops.scatter(out, self.indices, self.values)
        return out


class Exchanged(NamedTuple):
    """The result of an exchange."""

    mean: Mean
    sent: list[Sent]  # one a local worker
    payload_bits: float  # bits in one worker's message, as the papers count; mean over this rank's workers
    leader: int | None = None  # the rank that chose the indices, where one did
    chosen: str = ""  # the candidate that ran the step, where there are several
    reason: str = ""  # why it was chosen
    finite: bool = False  # infinity has been looked for in the mean


@dataclass
class StepStats:
    """Statistics of the last step on this rank.

    ``bytes_sent`` and ``bytes_received`` are counted at the calls into MPI. ``bytes_shared`` alone counts the bytes
    that this rank left for the others in memory that the ranks of a node share (``node_shared``).
    """

    step: int = -1
    bytes_sent: int = 0
    bytes_received: int = 0
    density: float = 1.0  # elements in one worker's message / elements of the vector
    leader: int | None = None
    payload_bits: float = 0.0
    skipped: bool = False
    phases: Sequence[tuple[str, int, int]] = field(default=(), repr=False)  # name, start and stop in ns
    measures: dict[str, float] = field(default_factory=dict)  # in measured steps: see mpicomp/reducer/measures.py
    bytes_shared: int = 0
    chosen: str = ""  # with the scheme auto: the candidate that ran the step
    reason: str = ""  # with the scheme auto: why that candidate was chosen

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each phase; of ``update`` also if nothing was to be updated."""
        total = {"update": 0.0} if self.phases else {}
        for name, start, stop in self.phases:
            total[name] = total.get(name, 0.0) + (stop - start) * 1e-9
        return total


class Everything(NamedTuple):
    """Choice of an exchange that sends all coordinates: only the number of elements to refuse, by worker."""

    nonfinite: list[int]


class Misfits(NamedTuple):
    """Values that a narrower dtype cannot hold: their ascending positions, the largest it can hold, and what is left.
    """

    positions: Array
    held: Array
    excess: Array

    @classmethod
    def among(cls, values: Array, largest: float, least: float, ops: Ops) -> Misfits | None:
        """The ``values`` of at least ``least``, which become infinite in a dtype up to ``largest``; None if none do."""
        positions, _ = ops.threshold(None, values, [(0, values.size)], [least])
        if not positions.size:
            return None
        excess = Compensated(None, values).at(positions, ops)
        held = excess.clip(-largest, largest)
        ops.axpby(excess, 1.0, excess, -1.0, held)
        return cls(positions, held, excess)
