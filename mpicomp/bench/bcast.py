"""What ``mpicomp bench bcast`` measures: MPI_Bcast, and Comm's own broadcast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..comm.transport import specification
from .data import Dense, Part, Vectors, dense, mpis_own
from .plan import Plan


def implementations(comm: Any, plan: Plan, n: int) -> list[Dense]:
    return dense(comm, plan, Copies(comm, plan, n))


class Copies(Vectors):
    """One vector on every rank, the root's being the one that counts."""

    def __init__(self, comm: Any, plan: Plan, n: int) -> None:
        super().__init__(comm, plan, n)
        for algorithm in plan.algorithms:
            self.refuse_unseen(algorithm)
        self._here = comm.rank == plan.root

    def begin(self, place: str) -> None:
        if self._here:
            self.receive[:] = self.send

    def call(self, algorithm: str, place: str) -> Callable[[], object]:
        if algorithm == "auto":
            return partial(self.comm.broadcast, self.receive, self.root)
        return partial(mpis_own(self.comm, "Bcast"), specification(self.receive), self.root)

    def expected(self, place: str) -> Iterator[Part]:
        yield Part(0, self.n, self.periods.of(self.root))

    def modelled(self, algorithm: str) -> int:
        return self.n * self.plan.itemsize * (self.comm.size > 1) if algorithm == "native" else 0
