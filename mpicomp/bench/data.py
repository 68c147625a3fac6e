"""Data with an exactly known result: small integers stored in any dtype, so that every order of summation is exact.

Rank r holds its own random period, repeated; a sum over ranks has the same period. So any result is known without
holding another vector.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .._util.partition import pieces
from ..ops.block_codes import largest_error
from .plan import Plan

if TYPE_CHECKING:
    from ..comm.comm import Comm

PERIOD = 65521  # prime, so that a misplaced piece is noticed
AMPLITUDE = 8
NEVER = -77  # in no result: fills the memory that a step must overwrite


class Expected(NamedTuple):
    """The expected elements ``begin`` to ``end`` of a result: ``period``, repeated."""

    begin: int
    end: int
    period: np.ndarray


class Periods:
    """The periods of all ranks, by seed, and their reduction."""

    def __init__(self, plan: Plan, size: int) -> None:
        self.dtype, self._op, self._seed, self._size = np.dtype(plan.dtype), mpi_op(plan.op), plan.seed, size
        self._divisor = size if plan.op == "avg" else 1
        self._limit = limit = exact_limit(self.dtype)
        self._amplitude = max(1, min(AMPLITUDE, limit // size))
        self._doublers = min(size, int(limit).bit_length() - 2)  # ranks whose factors are 2: more would overflow

    def of(self, rank: int) -> np.ndarray:
        """One rank's period, in the dtype of the bench."""
        return self._integers(rank).astype(self.dtype)

    def reduced(self) -> np.ndarray:
        """The reduction of all ranks' periods."""
        combine = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[self._op]
        total = self._integers(0)
        for rank in range(1, self._size):
            combine(total, self._integers(rank), out=total)
        result = total.astype(self.dtype)
        if self._divisor > 1:  # the division of an exact sum gives the same bits as on the ranks
            np.divide(result, self._divisor, out=result)
        return result

    def rounding(self, format: str) -> float:
        """Largest error of an element of the result if the ranks' vectors and their reduction become block codes."""
        dtype = self.dtype if self.dtype.itemsize > 2 else np.dtype(np.float32)
        share, largest = self._size / self._divisor, float(np.abs(self.reduced().astype(np.float64)).max())
        first = share * float(largest_error(self._amplitude, format, dtype))
        largest += first + share * self._size * self._amplitude * float(np.finfo(self.dtype).eps)
        return first + float(largest_error(largest, format, dtype)) + largest * float(np.finfo(self.dtype).eps)

    def _integers(self, rank: int) -> np.ndarray:
        if self._op == "sum" and rank >= self._limit:  # sums of so many ranks would not be exact
            return np.zeros(PERIOD, np.int64)
        if self._op != "prod":
            return period(self._seed, rank, self._amplitude)
        signs = 2 * (period(self._seed, rank, 1) > 0) - 1
        return signs * 2 if rank < self._doublers else signs


def mpi_op(op: str) -> str:
    """The operation that MPI executes: it has no average."""
    return "sum" if op == "avg" else op


def period(seed: int, rank: int, amplitude: int) -> np.ndarray:
    """``PERIOD`` random integers of one rank, in [-amplitude, amplitude]."""
    return np.random.default_rng([seed, rank]).integers(-amplitude, amplitude, PERIOD, endpoint=True)


def exact_limit(dtype: np.dtype) -> int:
    """The largest integer up to which ``dtype`` holds all integers."""
    return 2 ** (np.finfo(dtype).nmant + 1) if dtype.kind == "f" else int(np.iinfo(dtype).max)


def shifted(one: np.ndarray, offset: int) -> np.ndarray:
    """The period as it continues from element ``offset`` on."""
    return np.roll(one, -(offset % one.size))


def count_wrong(result: np.ndarray, expected: Iterator[Expected], tolerance: float = 0.0) -> int:
    """Number of elements of ``result`` that differ from the expected ones by more than ``tolerance``."""
    wrong = 0
    for part in expected:
        for begin, end in pieces(part.begin, part.end, PERIOD):
            found, wanted = result[begin:end], part.period[: end - begin]
            if tolerance:
                wrong += int(np.count_nonzero(~(np.abs(found.astype(np.float64) - wanted) <= tolerance)))
            else:
                wrong += int(np.count_nonzero(found != wanted))
    return wrong


def same_bits(comm: Comm, result: np.ndarray) -> bool:
    """True if all ranks have the same result (collective)."""
    return len(set(comm.allgather(zlib.crc32(result.view(np.uint8).data)))) == 1
