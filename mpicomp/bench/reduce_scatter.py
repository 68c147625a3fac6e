"""What ``mpicomp bench reduce_scatter`` measures: MPI_Reduce_scatter_block of equal blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ..comm.transport import MPI_OPS, specification
from .data import Dense, Part, Vectors, dense, mpis_own, resized, summed
from .plan import Plan


def implementations(comm: Any, plan: Plan, n: int) -> list[Dense]:
    return dense(comm, plan, Blocks(comm, plan, n))


class Blocks(Vectors):
    """Every rank sends a block of ``n`` elements to each; in place its own comes to the beginning of the input."""

    def __init__(self, comm: Any, plan: Plan, n: int) -> None:
        super().__init__(comm, plan, n)
        self.refuse_unseen("native")
        self._op, self._total = MPI_OPS[summed(plan.op)], self.periods.reduced()

    def input(self) -> np.ndarray:
        return resized(self.periods.of(self.comm.rank), self.n * self.comm.size)

    def output(self) -> np.ndarray:
        return np.zeros(self.n * (self.comm.size if "in" in self.plan.places else 1), self.periods.dtype)

    def begin(self, place: str) -> None:
        if place == "in":
            self.receive[:] = self.send

    def call(self, algorithm: str, place: str) -> Callable[[], object]:
        send = None if place == "in" else specification(self.send, self.n)  # None: in place
        call = partial(mpis_own(self.comm, "Reduce_scatter_block"), send, specification(self.receive, self.n), self._op)
        return self.averaged(call, self.receive[: self.n])

    def expected(self, place: str) -> Iterator[Part]:
        yield Part(0, self.n, np.roll(self._total, -(self.comm.rank * self.n % self._total.size)))

    def modelled(self, algorithm: str) -> int:
        return (self.comm.size - 1) * self.n * self.plan.itemsize

    def nbytes(self) -> int:
        return self.comm.size * super().nbytes()
