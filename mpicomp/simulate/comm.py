"""Verbs of ``Comm`` for one simulated rank, as the exchanges of schemes call them.

Each verb becomes a call with plain arguments, equal on all ranks that do the same; ``Script.play`` turns the calls into
the messages of one rank.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import NoReturn, Protocol, cast

import numpy as np

from .. import allreduce
from .._util.partition import pieces
from ..allreduce.choice import schedule
from ..allreduce.interfaces import Scratch
from ..allreduce.narrowed import in_half
from ..comm.allgather import gather_to_all
from ..comm.broadcast import broadcast
from ..comm.buffers import Vector
from ..comm.interfaces import Levels, Request
from ..types import Array
from .ghost import Ghost, Tiled, Unknown, as_array, as_ghost
from .ghost_ops import as_ops
from .link import RecordingLink
from .tape import ALL, Tape

BYTE = np.dtype(np.uint8)
AGREEMENT = 2  # int64 that ranks exchange in the agreement before a step
LENGTH = 8  # bytes
PAIRWISE = 8  # ranks, up to which MPI libraries send a length to each other rank directly


def bytes_on(link: RecordingLink, nbytes: int) -> Array:
    """Return an array of so many bytes."""
    return as_array(Ghost(link.ops, nbytes, BYTE))


# ---- the calls, of one rank

class Call(Protocol):
    """A verb with its arguments; equal calls send the same."""

    @property
    def among(self) -> int | None:
        """The ranks whose collective it is, ALL or those ACROSS nodes; None if it is none."""
        return ALL

    def play(self, link: RecordingLink) -> None:
        """Put this rank's messages onto the tape of ``link``."""


class Single(Call, Protocol):
    """A call that is no collective."""

    @property
    def among(self) -> None:
        return None


@dataclass(frozen=True)
class Agreement(Call):
    """Agreement by dissemination, see ``mpicomp.comm.transport.MpiLink.extremes``."""

    def play(self, link: RecordingLink) -> None:
        shift, numbers = 1, as_array(Ghost(link.ops, AGREEMENT, np.int64))
        while shift < link.size:
            link.sendrecv(numbers, (link.rank + shift) % link.size, numbers, (link.rank - shift) % link.size)
            shift *= 2


@dataclass(frozen=True)
class Allreduce(Call):
    """All-reduce of ``n`` elements."""

    n: int
    dtype: np.dtype
    algorithm: str
    op: str
    kind: str | None
    factor: float
    out_of_place: bool = False

    @property
    def half(self) -> str | None:
        """Kind of half precision, if any."""
        return self.kind or ("float16" if self.dtype == np.float16 else None)

    def schedule(self, link: RecordingLink) -> str:
        """Return the name of the dense schedule that runs."""
        vector = Vector(as_array(Ghost(link.ops, self.n, self.dtype)), self.half, None)
        return schedule(vector, self.op, self.algorithm, link)

    def play(self, link: RecordingLink) -> None:
        flat, chosen, ops = Ghost(link.ops, self.n, self.dtype), self.schedule(link), link.ops
        if self.n == 0:
            return
        source = Ghost(ops, self.n, self.dtype) if self.out_of_place else None
        if link.size == 1:
            if self.out_of_place:
                ops.copied(flat)
            if self.factor != 1.0:
                ops.scale(flat, self.factor)
            return
        options = {"kind": self.half} if self.half and chosen != "native" else {}
        allreduce.get(chosen)(link, flat, self.op, ops, link.scratch(self.dtype), self.factor, source, **options)


@dataclass(frozen=True)
class SumInHalf(Allreduce):
    """Sum of ``n`` float32 that travel as ``dtype``, the half precision ``kind``; ranks agree that it is finite."""

    def play(self, link: RecordingLink) -> None:
        ops, chosen, scratch = as_ops(link.ops), self.schedule(link), cast(Scratch, link.scratch(self.dtype))
        values = as_array(Ghost(link.ops, self.n, np.float32))
        codes = replace(self, factor=1.0)
        summing = in_half(link, self.n, str(self.kind), chosen, ops, scratch, lambda bits: Allreduce.play(codes, link))
        summing.add(lambda begin, end: values[begin:end])
        Agreement().play(link)
        summing.share(values, self.factor)


@dataclass(frozen=True)
class Broadcast(Call):
    """Broadcast of so many bytes."""

    nbytes: int
    root: int

    def play(self, link: RecordingLink) -> None:
        broadcast(link, bytes_on(link, self.nbytes), self.root)


@dataclass(frozen=True)
class Lengths(Call):
    """MPI's own all-gather of a length of every rank, by Bruck's algorithm."""

    def play(self, link: RecordingLink) -> None:
        distance = 1
        while distance < link.size:
            known = bytes_on(link, LENGTH * min(distance, link.size - distance))
            with link.tape.inside_mpi():
                link.sendrecv(known, (link.rank - distance) % link.size, known, (link.rank + distance) % link.size)
            distance *= 2


@dataclass(frozen=True)
class Gather(Call):
    """All-gather of so many bytes per rank; one number holds for all ranks."""

    nbytes: tuple[int, ...]

    def play(self, link: RecordingLink) -> None:
        counts = list(self.nbytes) * (link.size if len(self.nbytes) == 1 else 1)
        gather_to_all(link, bytes_on(link, counts[link.rank]), bytes_on(link, sum(counts)), counts)


@dataclass(frozen=True)
class AllToAll(Call):
    """MPI's own all-to-all, of so many bytes for each other rank: in pairs, or by Bruck's algorithm."""

    nbytes: int

    def play(self, link: RecordingLink) -> None:
        distance = 1
        while distance < link.size:
            blocks = 1 if link.size <= PAIRWISE else sum(1 for block in range(link.size) if block & distance)
            message = bytes_on(link, blocks * self.nbytes)
            with link.tape.inside_mpi():
                link.sendrecv(message, (link.rank + distance) % link.size, message, (link.rank - distance) % link.size)
            distance = distance + 1 if link.size <= PAIRWISE else 2 * distance


@dataclass(frozen=True)
class Messages(Single):
    """Start of messages to and from some ranks: how far each rank is ahead of this one, and its bytes."""

    outgoing: tuple[tuple[int, int], ...]
    incoming: tuple[tuple[int, int], ...]
    most: int | None  # bytes per message

    def play(self, link: RecordingLink) -> None:
        requests = [link.irecv(bytes_on(link, nbytes), (link.rank + ahead) % link.size)
                    for ahead, nbytes in self._messages(self.incoming)]
        requests += [link.isend(bytes_on(link, nbytes), (link.rank + ahead) % link.size)
                     for ahead, nbytes in self._messages(self.outgoing)]
        link.in_flight.append(requests)

    def _messages(self, arrays: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int]]:
        for ahead, nbytes in arrays:
            yield from ((ahead, end - begin) for begin, end in pieces(0, nbytes, self.most or max(1, nbytes)))


@dataclass(frozen=True)
class Landing(Single):
    """End of the oldest messages in flight."""

    def play(self, link: RecordingLink) -> None:
        for request in link.in_flight.popleft():
            link.wait(request)


@dataclass
class InFlight:
    """Messages of one rank in flight, the oldest of which are waited for first."""

    comm: RecordingComm
    received: dict[int, Array]

    def Wait(self) -> bool:
        self.comm.call(Landing())
        return True

    def Test(self) -> bool:
        return True


@dataclass
class Script:
    """A rank's step: its own work, and the calls between its events."""

    tape: Tape = field(default_factory=Tape)
    calls: list[tuple[int, Call]] = field(default_factory=list)  # after so many numbers of the tape
    sums: list[np.ndarray] = field(default_factory=list)  # over all ranks, of arrays whose elements are known
    more: int = 0  # bytes by which what an owner sends to all is longer than what it received
    numbers: list[list[int]] = field(default_factory=list)  # of which the ranks of a node found the largest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Script) and (self.tape.events, self.calls) == (other.tape.events, other.calls)

    def play(self, link: RecordingLink) -> None:
        """Put all onto the tape of ``link``."""
        begin = 0
        for end, call in self.calls:
            link.tape.events.extend(self.tape.events[begin:end] if end > begin else array("q"))
            if call.among is not None:
                link.tape.phase(call.among)
            call.play(link)
            begin = end
        link.tape.events.extend(self.tape.events[begin:])
        link.tape.phase(ALL)

    def stretched(self, size: int, most: float) -> tuple[Script, dict[int, int]]:
        """Return a script with longer all-reduces, so that ``size`` ranks have blocks of one length, and the lengths.

        They grow by up to the fraction ``most``. A script with a broadcast stays as it is: its ranks differ.
        """
        if any(isinstance(call, Broadcast) for _, call in self.calls):
            return self, {}
        lengths = {call.n: call.n + -call.n % size for _, call in self.calls if isinstance(call, Allreduce)}
        longer = {n: more for n, more in lengths.items() if n < more <= (1 + most) * n}
        calls = [(at, replace(call, n=longer.get(call.n, call.n)) if isinstance(call, Allreduce) else call)
                 for at, call in self.calls]
        return Script(self.tape, calls, self.sums), longer

    def schedules(self, link: RecordingLink) -> set[str]:
        """Return the dense schedules that run."""
        return {call.schedule(link) for _, call in self.calls if isinstance(call, Allreduce)}


class RecordingComm:
    """The verbs of a communicator that exchanges can be simulated with.

    Other ranks are assumed to do as this one: they send equally long messages to all, and to each owner of a part of
    the vector the same as this rank. Known elements are the same on all of them. To draw the same conclusions from
    sums, and to know messages of others where it owns nothing, a rank may be given the script of one ``like`` it.
    """

    log = recorder = None
    own_message = 0  # on each, so that the others' messages are treated alike on all
    flies = False  # a simulated all-reduce is one call
    levels: Levels | None = None  # of schemes with nodes=yes

    def __init__(self, script: Script, rank: int, size: int, like: Script | None = None,
                 one_node: bool = True, slow: bool = False) -> None:
        self._script, self.rank, self.size, self._like = script, rank, size, like
        self._to_owners: list[int] | None = None
        self.one_node, self.slow = one_node, slow

    def call(self, call: Call) -> None:
        """Add a call to the script."""
        self._script.calls.append((self._script.tape.cut(), call))

    def agree(self, signature: str = "", error: Exception | None = None, patient: bool = False) -> None:
        self.call(Agreement())

    def fail_together(self, error: Exception | None) -> None:
        self.call(Agreement())

    def extremes(self, number: int) -> tuple[int, int]:
        self.call(Agreement())
        return number, number

    def allreduce_in_place(self, x: Array, algorithm: str = "auto", op: str = "sum", kind: str | None = None,
                           factor: float = 1.0) -> None:
        self.call(Allreduce(x.size, np.dtype(x.dtype), algorithm, op, kind, factor))
        self._sum(x, op, factor)

    def allreduce_from(self, sendbuf: Array, recvbuf: Array, algorithm: str = "auto", factor: float = 1.0) -> None:
        self.call(Allreduce(recvbuf.size, np.dtype(recvbuf.dtype), algorithm, "sum", None, factor, True))
        if isinstance(recvbuf, np.ndarray):
            recvbuf[:] = sendbuf
        self._sum(recvbuf, "sum", factor)

    def sum_in_half(self, values: Callable[[int, int], Array], out: Array, kind: str, algorithm: str = "auto",
                    factor: float = 1.0, finite: bool = True) -> bool:
        given = values(0, out.size)
        self.call(SumInHalf(out.size, np.dtype(np.uint16), algorithm, "sum", kind, factor))
        if isinstance(out, np.ndarray):
            out[:] = given
        self._sum(out, "sum", factor)
        return True

    def _sum(self, x: Array, op: str, factor: float) -> None:
        if isinstance(x, np.ndarray) and op == "sum":
            every = x * x.dtype.type(self.size) * x.dtype.type(factor)
            x[:] = every if self._like is None else self._like.sums[len(self._script.sums)]
            self._script.sums.append(x.copy())

    def broadcast(self, x: Array, root: int) -> None:
        self.call(Broadcast(x.nbytes, root))

    def lengths_of_all(self, length: int) -> list[int]:
        """Return the lengths that owners send to all after they received their parts: the overhead is the same."""
        self.call(Lengths())
        if self._to_owners is None:
            return [length] * self.size
        own = self._to_owners[self.rank]
        self._script.more = more = self._like.more if self._like and not own else length - own
        return [max(1, part + more) if part else 0 for part in self._to_owners]

    def gather_to_all(self, x: Array, counts: list[int] | None = None) -> tuple[Array, list[int]]:
        counts = counts or self.lengths_of_all(x.size)
        if min(counts) == max(counts):
            self.call(Gather((x.nbytes,)))
            return as_array(Tiled(as_ghost(x), self.size)), counts
        self.call(Gather(tuple(count * x.itemsize for count in counts)))
        return as_array(Ghost(as_ghost(x).ops, sum(counts), x.dtype)), counts

    def swap_lengths(self, lengths: list[int]) -> list[int]:
        self._to_owners = lengths
        self.call(AllToAll(LENGTH))
        return [lengths[self.rank]] * self.size

    def open_device(self, like: Array) -> None:
        return

    def start_messages(self, outgoing: Mapping[int, Array], incoming: Mapping[int, int], like: Array,
                       most: int | None = None) -> InFlight:
        """Start messages; of those received as much is known as of ``like``, if they are as long."""
        def ahead(rank: int) -> int:
            return (rank - self.rank) % self.size

        self.call(Messages(tuple((ahead(rank), x.nbytes) for rank, x in outgoing.items()),
                           tuple((ahead(rank), nbytes) for rank, nbytes in incoming.items()), most))
        ghost = as_ghost(like)
        head = ghost.head
        return InFlight(self, {
            rank: as_array(Ghost(ghost.ops, nbytes, BYTE, head if nbytes == ghost.nbytes else None))
            for rank, nbytes in incoming.items()})

    def wait_for(self, request: Request) -> None:
        request.Wait()

    def send_and_receive(self, outgoing: Mapping[int, Array], incoming: Mapping[int, int], like: Array
                         ) -> dict[int, Array]:
        messages = self.start_messages(outgoing, incoming, like)
        messages.Wait()
        return messages.received

    def meanwhile(self, work: Iterator[None]) -> AbstractContextManager[None]:
        return self._script.tape.meanwhile(work)

    def __getattr__(self, name: str) -> NoReturn:
        raise Unknown(f"it uses Comm.{name}")
