"""What ``mpicomp bench allreduce`` measures: dense algorithms and compression schemes on one vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..comm import Comm
from ..cost import least_bytes
from ..link import MAX_COUNT, MPI_OPS
from . import data
from .compressed import Compressed, noise
from .data import PERIOD, Dense, Part
from .plan import Plan

__all__ = ["PERIOD", "Compressed", "Dense", "Vectors", "implementations", "noise"]


def implementations(comm: Any, plan: Plan, n: int) -> list[Dense | Compressed]:
    """Everything in ``plan``, on vectors of ``n`` elements."""
    made: list[Dense | Compressed] = []
    if plan.algorithms:
        made += data.dense(comm, plan, Vectors(comm, plan, n))
    if plan.schemes:
        gradient = noise(comm.rank, plan, n)
        made += [Compressed(comm, scheme, gradient, plan.device) for scheme in plan.schemes]
    return made


class Vectors(data.Vectors):
    """The vectors all dense algorithms share.

    ``native`` is what a program without this library calls: mpi4py's method, not ours that could hand over to it.
    Only GPU arrays, which MPI may not be able to see, and vectors too long for one call go through Comm.
    """

    def __init__(self, comm: Any, plan: Plan, n: int) -> None:
        super().__init__(comm, plan, n)
        self._op, self._total = MPI_OPS[data.summed(plan.op)], self.periods.reduced()
        self._mpi = super(Comm, comm).Allreduce  # type: ignore[misc]  # mypy knows this form for methods of Comm only
        self._direct = not self.on_device and n <= MAX_COUNT

    def begin(self, place: str) -> None:
        if place == "in":  # or the values would grow from step to step
            self.receive[:] = self.send

    def step(self, algorithm: str, place: str) -> None:
        self.bound(algorithm, place)()

    def bound(self, algorithm: str, place: str) -> Callable[[], object]:
        call = self._call(algorithm, place)
        return data.then(call, partial(self.divide, self.receive)) if self.plan.op == "avg" else call

    def _call(self, algorithm: str, place: str) -> Callable[[], None]:
        """The all-reduce with its arguments, so that a timed step is that call and nothing of ours."""
        if algorithm == "native" and self._direct:
            return partial(self._mpi, None if place == "in" else self.send, self.receive, self._op)  # None: in place
        if place == "in":
            return partial(self.comm.allreduce_in_place, self.receive, algorithm, data.summed(self.plan.op))
        return partial(self.comm.Allreduce, self.send, self.receive, self._op, algorithm)

    def expected(self, place: str) -> Iterator[Part]:
        yield Part(0, self.n, self._total)

    def modelled(self, algorithm: str) -> int:
        return least_bytes(self.nbytes(), self.comm.size) if algorithm == "native" and self._direct else 0
