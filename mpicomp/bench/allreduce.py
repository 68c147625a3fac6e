"""What ``mpicomp bench allreduce`` measures: dense algorithms and compression schemes on one vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..allreduce.cost import least_bytes
from ..comm.transport import MAX_COUNT, MPI_OPS, specification
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

    Of ``native`` only GPU arrays, which MPI may not be able to see, and vectors too long for one call go through Comm.
    """

    def __init__(self, comm: Any, plan: Plan, n: int) -> None:
        super().__init__(comm, plan, n)
        self._op, self._total = MPI_OPS[data.summed(plan.op)], self.periods.reduced()
        self._direct = not self.on_device and n <= MAX_COUNT

    def begin(self, place: str) -> None:
        if place == "in":  # or the values would grow from step to step
            self.receive[:] = self.send

    def call(self, algorithm: str, place: str) -> Callable[[], object]:
        return self.averaged(self._call(algorithm, place), self.receive)

    def _call(self, algorithm: str, place: str) -> Callable[[], None]:
        if algorithm == "native" and self._direct:
            send = None if place == "in" else specification(self.send)  # None: in place
            return partial(data.mpis_own(self.comm, "Allreduce"), send, specification(self.receive), self._op)
        if place == "in":
            return partial(self.comm.allreduce_in_place, self.receive, algorithm, data.summed(self.plan.op))
        return partial(self.comm.Allreduce, self.send, self.receive, self._op, algorithm)

    def expected(self, place: str) -> Iterator[Part]:
        yield Part(0, self.n, self._total)

    def modelled(self, algorithm: str) -> int:
        return least_bytes(self.nbytes(), self.comm.size) if algorithm == "native" and self._direct else 0
