"""What ``mpicomp bench allgather`` measures: MPI_Allgather of equal blocks, and Comm's own verb."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ..comm.transport import specification
from .data import Dense, Part, Vectors, dense, mpis_own
from .plan import Plan


def implementations(comm: Any, plan: Plan, n: int) -> list[Dense]:
    made = dense(comm, plan, Blocks(comm, plan, n))
    return [one for one in made if one.name == "native" or one.place == "out"]  # the verb allocates what it returns


class Blocks(Vectors):
    """Every rank's block of ``n`` elements; in place it lies where it belongs in the output."""

    def __init__(self, comm: Any, plan: Plan, n: int) -> None:
        super().__init__(comm, plan, n)
        for algorithm in plan.algorithms:
            self.refuse_unseen(algorithm)

    def output(self) -> np.ndarray:
        return np.zeros(self.n * self.comm.size, self.periods.dtype)

    def begin(self, place: str) -> None:
        if place == "in":
            first = self.comm.rank * self.n
            self.receive[first : first + self.n] = self.send

    def call(self, algorithm: str, place: str) -> Callable[[], object]:
        if algorithm == "auto":
            return self._gather_to_all
        send = None if place == "in" else specification(self.send)  # None: in place
        return partial(mpis_own(self.comm, "Allgather"), send, specification(self.receive, self.n))

    def _gather_to_all(self) -> None:
        self.result, _ = self.comm.gather_to_all(self.send, [self.n] * self.comm.size)

    def expected(self, place: str) -> Iterator[Part]:
        for rank in range(self.comm.size):
            yield Part(rank * self.n, (rank + 1) * self.n, self.periods.of(rank))

    def modelled(self, algorithm: str) -> int:
        return (self.comm.size - 1) * self.n * self.plan.itemsize if algorithm == "native" else 0

    def nbytes(self) -> int:
        return self.comm.size * super().nbytes()
