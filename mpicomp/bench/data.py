"""Vectors whose result is known exactly: small integers stored in any dtype, so every order of summation is exact.

Rank r holds its own random period again and again; a sum over ranks has that period too. So any result is known
without holding another vector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from operator import itruediv
from typing import Any, NamedTuple

import numpy as np

from .._util.partition import pieces
from ..comm.inherited import Inherited
from ..errors import BufferRefused
from ..ops import ops_for
from ..ops.device import device_of, ready
from .devices import to_device
from .plan import Plan

PERIOD = 65521  # prime, so that a piece that lands in the wrong place is seen
AMPLITUDE = 8
NEVER = -77  # what no result is: fills what is to be overwritten


class Part(NamedTuple):
    """What elements ``begin`` to ``end`` of a result are to be: ``period``, again and again."""

    begin: int
    end: int
    period: np.ndarray


class Periods:
    """The periods of all ranks, by seed, and their reduction."""

    def __init__(self, plan: Plan, size: int) -> None:
        self.dtype, self._op, self._seed, self._size = np.dtype(plan.dtype), summed(plan.op), plan.seed, size
        self._divisor = size if plan.op == "avg" else 1
        self._limit = limit = exact_limit(self.dtype)
        self._amplitude = max(1, min(AMPLITUDE, limit // size))
        self._doublers = min(size, int(limit).bit_length() - 2)  # ranks whose factors are 2: more would overflow

    def of(self, rank: int) -> np.ndarray:
        """One rank's, in the dtype of the bench."""
        return self._integers(rank).astype(self.dtype)

    def reduced(self) -> np.ndarray:
        combine = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[self._op]
        total = self._integers(0)
        for rank in range(1, self._size):
            combine(total, self._integers(rank), out=total)
        result = total.astype(self.dtype)
        if self._divisor > 1:  # of an exact sum: the same bits as of the one that was sent
            np.divide(result, self._divisor, out=result)
        return result

    def _integers(self, rank: int) -> np.ndarray:
        if self._op == "sum" and rank >= self._limit:  # so many ranks' sums would not be exact
            return np.zeros(PERIOD, np.int64)
        if self._op != "prod":
            return period(self._seed, rank, self._amplitude)
        signs = 2 * (period(self._seed, rank, 1) > 0) - 1
        return signs * 2 if rank < self._doublers else signs


def summed(op: str) -> str:
    """What MPI is asked to do: it knows no average."""
    return "sum" if op == "avg" else op


def period(seed: int, rank: int, amplitude: int) -> np.ndarray:
    """``PERIOD`` random integers of one rank, in [-amplitude, amplitude]."""
    return np.random.default_rng([seed, rank]).integers(-amplitude, amplitude, PERIOD, endpoint=True)


def exact_limit(dtype: np.dtype) -> int:
    """The largest integer up to which ``dtype`` holds all of them."""
    return 2 ** (np.finfo(dtype).nmant + 1) if dtype.kind == "f" else np.iinfo(dtype).max


def resized(one: np.ndarray, n: int, offset: int = 0) -> np.ndarray:
    """``n`` elements of a period repeated, from element ``offset`` on."""
    return np.resize(np.roll(one, -(offset % one.size)), n)


def count_wrong(result: np.ndarray, parts: Iterator[Part]) -> int:
    """Elements of ``result`` that are not what they are to be."""
    wrong = 0
    for part in parts:
        for begin, end in pieces(part.begin, part.end, PERIOD):
            wrong += int(np.count_nonzero(result[begin:end] != part.period[: end - begin]))
    return wrong


class Vectors(ABC):
    """Input and output of a collective, shared by its implementations; one subclass a collective.

    Attributes
    ----------
    send, receive : array
        On the plan's device. They stay where they are: the calls hold specifications of their memory.
    result : array
        What the last step gave: ``receive``, except where a verb allocates what it returns.
    one_way : float
        The part of a step's time that counts.
    """

    one_way = 1.0

    def __init__(self, comm: Any, plan: Plan, n: int) -> None:
        self.comm, self.plan, self.n, self.root = comm, plan, n, plan.root
        self.on_device = plan.device == "gpu"
        self.periods = Periods(plan, comm.size)
        self.send, self.receive = (to_device(one, plan.device) for one in (self.input(), self.output()))
        self.result = self.receive

    def input(self) -> np.ndarray:
        return resized(self.periods.of(self.comm.rank), self.n)

    def output(self) -> np.ndarray:
        return np.zeros(self.n, self.periods.dtype)

    def begin(self, place: str) -> None:  # noqa: B027 (a choice: most collectives leave their input alone)
        """Put the input where the collective wants it."""

    @abstractmethod
    def call(self, algorithm: str, place: str) -> Callable[[], object]:
        """The collective with its arguments, so that a timed step is that call and as little of ours as can be."""

    @abstractmethod
    def expected(self, place: str) -> Iterator[Part]:
        """What ``result`` is to be on this rank."""

    def averaged(self, call: Callable[[], object], result: Any) -> Callable[[], object]:
        """``call``, and for an average a division of ``result``, as a program does it: MPI has no such operation."""
        return then(call, partial(itruediv, result, self.comm.size)) if self.plan.op == "avg" else call

    def modelled(self, algorithm: str) -> int:
        """Bytes a step of MPI's own call sends, of the rank that sends most, where Comm does not see it."""
        return 0

    def wrong(self, place: str = "out") -> int:
        """Elements of ``result`` that are not what they are to be."""
        return count_wrong(ops_for(self.result).to_host(self.result), self.expected(place))

    def nbytes(self) -> int:
        """Bytes the bandwidths count."""
        return self.n * self.plan.itemsize

    def refuse_unseen(self, algorithm: str) -> None:
        """MPI's own calls beside all-reduce are handed device memory as it is: MPI must be known to take it."""
        if algorithm == "native" and device_of(self.send) is not None and self.comm.gpu_path[0] != "direct":
            raise BufferRefused(
                f"{self.plan.collective} native on GPU arrays needs an MPI that takes device memory "
                f"({self.comm.gpu_path[1]}): leave it out with --algorithm auto, if it exists, or use --device "
                "cpu"
            )


class Dense:
    """One algorithm of one collective, in one place."""

    part = "step"

    def __init__(self, comm: Any, algorithm: str, vectors: Vectors, place: str) -> None:
        self.name, self.vectors, self.place, self.one_way = algorithm, vectors, place, vectors.one_way
        self.modelled = vectors.modelled(algorithm)
        call = vectors.call(algorithm, place)
        self.step = then(call, lambda: ready(vectors.result)) if vectors.on_device else call

    def begin(self) -> None:
        self.vectors.result = self.vectors.receive
        self.vectors.begin(self.place)
        if self.vectors.on_device:
            ready(self.vectors.receive)

    def end(self) -> None:
        """A dense algorithm has nothing to say about itself."""

    def check(self) -> int:
        self.vectors.receive[:] = NEVER  # what another algorithm left there must not pass for a result
        self.begin()
        self.step()
        return self.vectors.wrong(self.place)

    def facts(self, rounds: int) -> dict[str, Any]:
        return {"algorithm": self.name, "scheme": None, "part": self.part, "place": self.place}


def mpis_own(comm: Any, name: str) -> Callable[..., None]:
    """mpi4py's own method, as a program without this library calls it: not ours that hands over to it."""
    method: Callable[..., None] = getattr(super(Inherited, comm), name)
    return method


def then(call: Callable[[], object], after: Callable[[], object]) -> Callable[[], None]:
    """One call that makes both."""

    def both() -> None:
        call()
        after()

    return both


def dense(comm: Any, plan: Plan, vectors: Vectors) -> list[Dense]:
    """Every algorithm of ``plan`` in every place it asks for."""
    return [Dense(comm, name, vectors, place) for place in plan.places for name in plan.algorithms]
