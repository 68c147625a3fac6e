"""What ``mpicomp bench pingpong`` measures: a message there and back between two ranks, while the others wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .data import Dense, Part, Vectors, dense
from .plan import Plan

TAG = 2


def implementations(comm: Any, plan: Plan, n: int) -> list[Dense]:
    return dense(comm, plan, Messages(comm, plan, n))


class Messages(Vectors):
    """A vector each way: each of the two receives the other's.

    The other rank is the one half the job away: on another node where ranks fill nodes one by one.
    """

    one_way = 0.5

    def __init__(self, comm: Any, plan: Plan, n: int) -> None:
        self._first, self._second = plan.root, (plan.root + comm.size // 2) % comm.size
        super().__init__(comm, plan, n)
        for algorithm in plan.algorithms:
            self.refuse_unseen(algorithm)

    def step(self, algorithm: str, place: str) -> None:
        if self.comm.rank == self._first:
            self._send(algorithm, self._second)
            self._receive(algorithm, self._second)
        elif self.comm.rank == self._second:
            self._receive(algorithm, self._first)
            self._send(algorithm, self._first)

    def _send(self, algorithm: str, to: int) -> None:
        if algorithm == "auto":
            self.comm.send_and_receive({to: self.send}, {}, self.send)
        else:
            self.comm.Send(self.send, to, TAG)

    def _receive(self, algorithm: str, source: int) -> None:
        if algorithm == "auto":
            arrived = self.comm.send_and_receive({}, {source: self.send.nbytes}, self.send)
            self.receive = arrived[source].view(self.send.dtype)
        else:
            self.comm.Recv(self.receive, source, TAG)

    def expected(self, place: str) -> Iterator[Part]:
        pair = {self._first: self._second, self._second: self._first}
        if self.comm.rank in pair:
            yield Part(0, self.n, self.periods.of(pair[self.comm.rank]))

    def modelled(self, algorithm: str) -> int:
        return self.n * self.plan.itemsize if algorithm == "native" else 0
