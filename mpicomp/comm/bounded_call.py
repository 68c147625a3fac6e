"""Validated arguments of one collective with an error bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from numbers import Real
from operator import index

import numpy as np
from mpi4py import MPI

from ..allreduce.ring_of_streams import Ring
from ..allreduce.two_hops import Pieces, TwoHops
from ..errors import BufferRefused, InvalidArgument
from ..types import Array
from .allreduce_call import AVG, place
from .buffers import Buffer, Vector, array_in, vector
from .mpi_types import numpy_dtype, op_name, raw_bytes

TWO_HOPS, RING = "two_hops", "ring"
SCHEDULES = {TWO_HOPS: TwoHops, RING: Ring}  # of streams, by ``algorithm``
ON_RING = ("Allreduce", "Reduce_scatter", "Reduce_scatter_block")


@dataclass
class Call:
    """One validated call."""

    verb: str
    op: str  # sum, avg; empty if nothing is added
    elements: int  # the same on all ranks
    source: Vector | None  # None: in ``target``, or this rank contributes nothing
    target: Vector
    details: str  # further arguments that must be the same on all ranks
    pieces: Callable[[Array | None, Array], Pieces]  # of host arrays
    exact: Callable[[Array | None, Array], object]  # the same by MPI, of host arrays

    def signature(self) -> str:
        parts = [f"op={self.op}"] if self.op else []
        return ", ".join([*parts, f"{self.elements} elements", f"dtype={self.target.name}", self.details,
                          *place(self.target.device)])


@dataclass(frozen=True)
class Bound:
    """The arguments ``bound``, ``relative`` and ``algorithm``."""

    bound: object
    relative: object
    algorithm: str

    def check(self, verb: str) -> None:
        """Refuse values that have no meaning for ``verb``."""
        if self.bound is None:
            chosen = "" if verb == "Allreduce" else f", and any algorithm of {verb}"
            raise InvalidArgument(f"op=AVG and relative=True{chosen} need an error bound: pass bound=, "
                                  "or leave them out")
        if not isinstance(self.bound, Real) or isinstance(self.bound, bool) or not 0 < self.value < inf:
            raise InvalidArgument(f"bound must be a positive finite number, got {self.bound!r}")
        if not isinstance(self.relative, (bool, np.bool_)):
            raise InvalidArgument(f"relative must be True or False, got {self.relative!r}")
        known = ["auto", TWO_HOPS, *([RING] if verb in ON_RING else [])]
        if self.algorithm not in known:
            raise InvalidArgument(f"algorithm={self.algorithm!r} has no error bound in {verb}: choose "
                                  f"{' or '.join(known)}, or leave out bound")

    def __str__(self) -> str:
        return f"bound={self.value!r}, relative={self.relative}, algorithm={self.algorithm}"

    @property
    def value(self) -> float:
        assert isinstance(self.bound, Real), "checked"
        try:
            return float(self.bound)
        except OverflowError:  # of an integer or a fraction
            return inf

    @property
    def label(self) -> str:
        return f"bound={self.value:g}{' relative' if self.relative else ''}"


def given_counts(recvcounts: Sequence[int] | None, size: int) -> list[int]:
    """Return the counts of ``Reduce_scatter`` as a list of one number per rank."""
    try:
        counts = list(map(index, () if recvcounts is None else recvcounts))
    except TypeError:
        counts = []
    if len(counts) != size or min(counts) < 0:
        raise InvalidArgument(f"with an error bound, recvcounts must be {size} numbers from 0, one per rank, "
                              f"got {recvcounts!r}")
    return counts


def real_vector(message: Buffer, role: str) -> Vector:
    """Return a buffer of float32 or float64 as a vector; refuse others."""
    found = vector(message, role, numpy_dtype, raw_bytes)
    if found is None or found.kind or found.array.dtype.char not in "fd":
        given = array_in(message)
        name = found.name if found else getattr(given, "dtype", type(given).__name__)
        raise BufferRefused(f"{role} must hold float32 or float64 for an error bound, got {name}: convert it, or leave "
                            "out bound")
    return found


def check_same(source: Vector, target: Vector) -> None:
    """Refuse two buffers of different dtypes or devices."""
    if source.array.dtype != target.array.dtype or (source.device is None) != (target.device is None):
        raise BufferRefused(f"sendbuf and recvbuf must have one dtype and device, got {source.name} and {target.name}")
    if source.device is None and np.may_share_memory(source.array, target.array):
        raise BufferRefused("sendbuf and recvbuf overlap: pass MPI.IN_PLACE as sendbuf")


def reduction_name(op: MPI.Op | str) -> str:
    """Return ``sum`` or ``avg``; refuse other operations."""
    if isinstance(op, MPI.Op) and op == MPI.SUM:
        return "sum"
    if isinstance(op, str) and op == AVG:
        return AVG
    name = op_name(op) if isinstance(op, MPI.Op) else repr(op)
    raise InvalidArgument(f"an error bound needs op=MPI.SUM or mpicomp.AVG, got {name}: only sums add up codes without "
                          "decoding them; leave out bound")


def apart(source: Array | None, target: Array) -> Array:
    """Return a copy of ``source`` if it shares memory with ``target``, else itself."""
    assert source is not None, "every rank contributes"
    return source.copy() if np.may_share_memory(source, target) else source
