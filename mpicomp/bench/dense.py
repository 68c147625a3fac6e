"""Dense collectives as the bench times them: one class per collective, MPI's own calls beside those of ``Comm``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from operator import itruediv

import numpy as np

from ..allreduce import LOSSY
from ..allreduce.native import least_bytes
from ..comm.allreduce_call import AVG
from ..comm.comm import Comm
from ..comm.mpi_types import MPI_OPS, specification
from ..comm.transport import MAX_COUNT
from ..errors import BufferRefused
from ..ops import ops_for
from ..ops.device import device_of, ready
from ..types import Array
from .data import NEVER, Expected, Periods, count_wrong, mpi_op, shifted
from .devices import to_device
from .plan import Plan
from .timing import Facts, Implementation, mpis_own

Call = Callable[[], object]  # a collective with its arguments
TAG = 2


class Vectors(ABC):
    """Input and output of a collective, shared by its implementations."""

    one_way = 1.0  # the part of a step's time that counts on this rank
    scatters = gathers = False  # the input (scatters) or the output (gathers) has a block per rank

    def __init__(self, comm: Comm, plan: Plan, n: int) -> None:
        self.comm, self.plan, self.n, self.root = comm, plan, n, plan.root
        self.on_device = plan.device == "gpu"
        self.periods, self.op = Periods(plan, comm.size), MPI_OPS[mpi_op(plan.op)]
        # On the plan's device. They keep their addresses: the calls hold specifications of their memory.
        self.send: Array = to_device(self.input(), plan.device)
        self.receive: Array = to_device(self.output(), plan.device)
        self.result = self.receive  # of the last step, unless a verb allocates its result
        for algorithm in plan.algorithms:
            self.refuse(algorithm)

    def refuse(self, algorithm: str) -> None:
        """Raise unless MPI takes device memory: its own calls get the arrays as they are."""
        if algorithm == "native" and device_of(self.send) is not None and self.comm.gpu_path[0] != "direct":
            raise BufferRefused(
                f"{self.plan.collective} native on GPU arrays needs an MPI that takes device memory "
                f"({self.comm.gpu_path[1]}): leave it out with --algorithm auto, if the collective has that, or use "
                "--device cpu"
            )

    def input(self) -> np.ndarray:
        """This rank's input on the host."""
        return np.resize(self.periods.of(self.comm.rank), self.n * (self.comm.size if self.scatters else 1))

    def output(self) -> np.ndarray:
        """Memory for the result on the host."""
        return np.zeros(self.n * (self.comm.size if self.gathers else 1), self.periods.dtype)

    @cached_property
    def total(self) -> np.ndarray:
        """The reduction of all ranks' periods."""
        return self.periods.reduced()

    def begin(self, place: str) -> None:
        """Copy the input to the buffer of an in-place step, or the values would grow from step to step; not timed."""
        if place == "in":
            self.receive[:] = self.send

    @abstractmethod
    def call(self, algorithm: str, place: str) -> Call:
        """The collective with its arguments, so that a timed step is that call and as little else as possible."""

    @abstractmethod
    def expected(self, place: str) -> Iterator[Expected]:
        """The expected ``result`` on this rank."""

    def modelled(self, algorithm: str) -> int:
        """Bytes per step, of the rank that sends most, inside a call of MPI's own that Comm does not see."""
        blocks = self.comm.size - 1 if self.plan.what.blocks else 1
        return blocks * self.n * self.plan.itemsize if algorithm == "native" else 0

    def nbytes(self) -> int:
        """The bytes that bandwidths count."""
        return self.n * self.plan.itemsize * (self.comm.size if self.plan.what.blocks else 1)

    def sender(self, place: str, count: int | None = None) -> object:
        """The send buffer as mpi4py takes it; None is MPI_IN_PLACE."""
        return None if place == "in" else specification(self.send, count)

    def averaged(self, call: Call, result: Array) -> Call:
        """``call``, and for an average a division of ``result``, as in programs: MPI has no such operation."""
        return then(call, partial(itruediv, result, self.comm.size)) if self.plan.op == "avg" else call

    def tolerance(self, algorithm: str) -> float:
        """Largest difference from the expected ``result`` that is no error."""
        return 0.0

    def wrong(self, place: str = "out", tolerance: float = 0.0) -> int:
        """Number of elements of ``result`` that differ from the expected ones by more than ``tolerance``."""
        return count_wrong(ops_for(self.result).to_host(self.result), self.expected(place), tolerance)


class AllReduce(Vectors):
    """All-reduce. ``native`` goes through Comm for GPU arrays and for vectors that are too long for one call."""

    def __init__(self, comm: Comm, plan: Plan, n: int) -> None:
        super().__init__(comm, plan, n)
        self._direct = not self.on_device and n <= MAX_COUNT

    def refuse(self, algorithm: str) -> None:
        """Comm stages device memory that MPI does not take."""

    def call(self, algorithm: str, place: str) -> Call:
        if algorithm in LOSSY:
            op = AVG if self.plan.op == "avg" else self.op
            return partial(self.comm.Allreduce, None if place == "in" else self.send, self.receive, op, algorithm)
        return self.averaged(self._call(algorithm, place), self.receive)

    def tolerance(self, algorithm: str) -> float:
        return self.periods.rounding(algorithm) if algorithm in LOSSY else 0.0

    def _call(self, algorithm: str, place: str) -> Call:
        if algorithm == "native" and self._direct:
            return partial(mpis_own(self.comm, "Allreduce"), self.sender(place), specification(self.receive), self.op)
        if place == "in":
            return partial(self.comm.allreduce_in_place, self.receive, algorithm, mpi_op(self.plan.op))
        return partial(self.comm.Allreduce, self.send, self.receive, self.op, algorithm)

    def expected(self, place: str) -> Iterator[Expected]:
        yield Expected(0, self.n, self.total)

    def modelled(self, algorithm: str) -> int:
        return least_bytes(self.nbytes(), self.comm.size) if algorithm == "native" and self._direct else 0


class ReduceScatter(Vectors):
    """MPI_Reduce_scatter_block; in place a rank's result replaces the beginning of its input."""

    scatters = True

    def __init__(self, comm: Comm, plan: Plan, n: int) -> None:
        self.gathers = "in" in plan.places
        super().__init__(comm, plan, n)

    def call(self, algorithm: str, place: str) -> Call:
        call = partial(mpis_own(self.comm, "Reduce_scatter_block"), self.sender(place, self.n),
                       specification(self.receive, self.n), self.op)  # fmt: skip
        return self.averaged(call, self.receive[: self.n])

    def expected(self, place: str) -> Iterator[Expected]:
        yield Expected(0, self.n, shifted(self.total, self.comm.rank * self.n))


class AllGather(Vectors):
    """All-gather of one block per rank; in place the block is at its position in the output."""

    gathers = True

    def begin(self, place: str) -> None:
        if place == "in":
            first = self.comm.rank * self.n
            self.receive[first : first + self.n] = self.send

    def call(self, algorithm: str, place: str) -> Call:
        if algorithm == "auto":
            return self._gather_to_all
        return partial(mpis_own(self.comm, "Allgather"), self.sender(place), specification(self.receive, self.n))

    def _gather_to_all(self) -> None:
        self.result, _ = self.comm.gather_to_all(self.send, [self.n] * self.comm.size)

    def expected(self, place: str) -> Iterator[Expected]:
        for rank in range(self.comm.size):
            yield Expected(rank * self.n, (rank + 1) * self.n, self.periods.of(rank))


class AllToAll(Vectors):
    """MPI_Alltoall: block r of a rank's input goes to rank r."""

    scatters = gathers = True

    def call(self, algorithm: str, place: str) -> Call:
        return partial(mpis_own(self.comm, "Alltoall"), self.sender(place, self.n), specification(self.receive, self.n))

    def expected(self, place: str) -> Iterator[Expected]:
        for rank in range(self.comm.size):
            period = shifted(self.periods.of(rank), self.comm.rank * self.n)
            yield Expected(rank * self.n, (rank + 1) * self.n, period)


class Broadcast(Vectors):
    """Broadcast of the root's vector."""

    def begin(self, place: str) -> None:
        if self.comm.rank == self.root:
            self.receive[:] = self.send

    def call(self, algorithm: str, place: str) -> Call:
        if algorithm == "auto":
            return partial(self.comm.broadcast, self.receive, self.root)
        return partial(mpis_own(self.comm, "Bcast"), specification(self.receive), self.root)

    def expected(self, place: str) -> Iterator[Expected]:
        yield Expected(0, self.n, self.periods.of(self.root))

    def modelled(self, algorithm: str) -> int:
        return self.n * self.plan.itemsize * (self.comm.size > 1) if algorithm == "native" else 0


class PingPong(Vectors):
    """A message each way between two ranks while the others wait: each of the two receives the other's vector.

    The other rank is half the job away: on another node if ranks fill nodes one by one.
    """

    def __init__(self, comm: Comm, plan: Plan, n: int) -> None:
        self.pair = plan.root, (plan.root + comm.size // 2) % comm.size
        self._other = dict(zip(self.pair, self.pair[::-1], strict=True)).get(comm.rank)
        self.one_way = 0.0 if self._other is None else 0.5
        super().__init__(comm, plan, n)

    def call(self, algorithm: str, place: str) -> Call:
        if self._other is None:
            return lambda: None
        send, receive = (self._ours if algorithm == "auto" else self._mpis)(self._other)
        return then(send, receive) if self.comm.rank == self.pair[0] else then(receive, send)

    def _mpis(self, other: int) -> tuple[Call, Call]:
        return (partial(mpis_own(self.comm, "Send"), specification(self.send), other, TAG),
                partial(mpis_own(self.comm, "Recv"), specification(self.receive), other, TAG))

    def _ours(self, other: int) -> tuple[Call, Call]:
        def receive() -> None:
            arrived = self.comm.send_and_receive({}, {other: self.send.nbytes}, self.send)
            self.result = arrived[other].view(self.send.dtype)

        return partial(self.comm.send_and_receive, {other: self.send}, {}, self.send), receive

    def begin(self, place: str) -> None:
        """Nothing to copy."""

    def expected(self, place: str) -> Iterator[Expected]:
        if self._other is not None:
            yield Expected(0, self.n, self.periods.of(self._other))


VECTORS: dict[str, type[Vectors]] = {
    "allreduce": AllReduce, "reduce_scatter": ReduceScatter, "allgather": AllGather, "alltoall": AllToAll,
    "bcast": Broadcast, "pingpong": PingPong, "schemes": AllReduce,
}  # fmt: skip


class Dense(Implementation):
    """One algorithm of one collective, in one place."""

    place: str

    def __init__(self, algorithm: str, vectors: Vectors, place: str) -> None:
        self.name, self.vectors, self.place, self.one_way = algorithm, vectors, place, vectors.one_way
        self.modelled = vectors.modelled(algorithm)
        call = vectors.call(algorithm, place)
        self.step: Call = then(call, lambda: ready(vectors.result)) if vectors.on_device else call

    def begin(self) -> None:
        self.vectors.result = self.vectors.receive
        self.vectors.begin(self.place)
        if self.vectors.on_device:
            ready(self.vectors.receive)

    def check(self) -> int:
        self.vectors.receive[:] = NEVER  # the result of another algorithm must not pass for this one's
        self.begin()
        self.step()
        return self.vectors.wrong(self.place, self.vectors.tolerance(self.name))

    def facts(self, rounds: int) -> Facts:
        return Facts(algorithm=self.name, place=self.place)


def then(call: Call, after: Call) -> Callable[[], None]:
    """One function that calls both."""

    def both() -> None:
        call()
        after()

    return both


def dense(comm: Comm, plan: Plan, n: int) -> list[Dense]:
    """Every algorithm of ``plan`` in every place, on vectors (or blocks) of ``n`` elements."""
    if not plan.algorithms:
        return []
    vectors = VECTORS[plan.collective](comm, plan, n)
    return [Dense(name, vectors, place) for place in plan.places for name in plan.algorithms]
