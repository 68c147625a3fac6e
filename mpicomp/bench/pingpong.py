"""What ``mpicomp bench pingpong`` measures: a message there and back between two ranks, while the others wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..comm.transport import specification
from .data import Dense, Part, Vectors, dense, mpis_own, then
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
        self._other = {self._first: self._second, self._second: self._first}.get(comm.rank)
        super().__init__(comm, plan, n)
        for algorithm in plan.algorithms:
            self.refuse_unseen(algorithm)

    def call(self, algorithm: str, place: str) -> Callable[[], object]:
        if self._other is None:
            return lambda: None
        send, receive = (self._ours if algorithm == "auto" else self._mpis)(self._other)
        return then(send, receive) if self.comm.rank == self._first else then(receive, send)

    def _mpis(self, other: int) -> tuple[Callable[[], object], Callable[[], object]]:
        return (partial(mpis_own(self.comm, "Send"), specification(self.send), other, TAG),
                partial(mpis_own(self.comm, "Recv"), specification(self.receive), other, TAG))

    def _ours(self, other: int) -> tuple[Callable[[], object], Callable[[], object]]:
        def receive() -> None:
            arrived = self.comm.send_and_receive({}, {other: self.send.nbytes}, self.send)
            self.result = arrived[other].view(self.send.dtype)

        return partial(self.comm.send_and_receive, {other: self.send}, {}, self.send), receive

    def expected(self, place: str) -> Iterator[Part]:
        if self._other is not None:
            yield Part(0, self.n, self.periods.of(self._other))

    def modelled(self, algorithm: str) -> int:
        return self.n * self.plan.itemsize if algorithm == "native" else 0
