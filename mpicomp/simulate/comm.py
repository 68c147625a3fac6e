"""What the exchanges of schemes speak to, of one simulated rank: the verbs of ``Comm``.

A verb is written down as a call with plain arguments, the same on all ranks that do the same; ``play`` turns the calls
of a script into the messages of one rank.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import allreduce
from ..allreduce.choice import schedule
from ..comm.allgather import gather_to_all
from ..comm.broadcast import broadcast
from ..comm.buffers import Vector
from ..types import Array
from .ghost import Ghost, Tiled, Unknown, as_array, as_ghost
from .link import RecordingLink
from .tape import Tape

BYTE = np.dtype(np.uint8)
AGREEMENT = 2  # int64 that ranks tell each other in the agreement before a step
LENGTH = 8  # bytes
PAIRWISE = 8  # ranks, up to which MPI libraries send a length to each other rank directly

Verb = Callable[..., None]  # of a link and what the call was given


@dataclass
class Script:
    """What a rank does in a step: its own work, and between its events the calls that send messages."""

    tape: Tape = field(default_factory=Tape)
    calls: list[tuple[int, Verb, tuple[Any, ...]]] = field(default_factory=list)  # after so many numbers of the tape
    sums: list[np.ndarray] = field(default_factory=list)  # over all ranks, of arrays whose elements are known

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Script) and (self.tape.events, self.calls) == (other.tape.events, other.calls)

    def play(self, link: RecordingLink) -> None:
        """Put all onto the tape of ``link``."""
        begin = 0
        end_of_it: tuple[int, Verb, tuple[Any, ...]] = (len(self.tape.events), _nothing, ())
        for end, verb, arguments in [*self.calls, end_of_it]:
            link.tape.events.extend(self.tape.events[begin:end] if end > begin else array("q"))
            if verb is not _messages:  # which is no collective: some ranks may not take part
                link.tape.phase()
            verb(link, *arguments)
            begin = end

    def stretched(self, size: int, most: float) -> tuple[Script, dict[int, int]]:
        """With all-reduces longer by up to the fraction ``most``, so that ``size`` ranks have blocks of one length.

        As it is where something is sent from a root: ranks differ then. Also gives which lengths are taken for which.
        """
        if any(verb is _broadcast for _, verb, _ in self.calls):
            return self, {}
        lengths = {given[0]: given[0] + -given[0] % size for _, verb, given in self.calls if verb is _allreduce}
        longer = {n: more for n, more in lengths.items() if n < more <= (1 + most) * n}
        calls = [(at, verb, (longer.get(given[0], given[0]), *given[1:]) if verb is _allreduce else given)
                 for at, verb, given in self.calls]
        return Script(self.tape, calls, self.sums), longer

    def schedules(self, link: RecordingLink) -> set[str]:
        """The dense schedules that run."""
        return {_chosen(link, *arguments) for _, verb, arguments in self.calls if verb is _allreduce}


class RecordingComm:
    """The verbs that exchanges can be simulated with.

    Other ranks are taken to do as this one: they send equally long messages to all, and to each owner of a part
    of the vector what this rank would. What is known of an array is the same on all of them; so that they also draw the
    same conclusions from sums of it, a rank may be given the ``sums`` that another one found.
    """

    log = recorder = None
    own_message = 0  # on each, so that what they do with the others' is the same on all

    def __init__(self, script: Script, rank: int, size: int, sums: list[np.ndarray] | None = None) -> None:
        self._script, self.rank, self.size, self._sums = script, rank, size, sums
        self._to_owners: list[int] | None = None

    def _call(self, verb: Callable[..., None], *arguments: object) -> None:
        self._script.calls.append((self._script.tape.cut(), verb, arguments))

    def agree(self, signature: str = "", error: Exception | None = None, patient: bool = False) -> None:
        self._call(_agreement)

    def allreduce_in_place(self, x: Array, algorithm: str = "auto", op: str = "sum", kind: str | None = None,
                           factor: float = 1.0) -> None:
        self._call(_allreduce, x.size, np.dtype(x.dtype), algorithm, op, kind, factor)
        self._sum(x, op, factor)

    def allreduce_from(self, sendbuf: Array, recvbuf: Array, algorithm: str = "auto", factor: float = 1.0) -> None:
        self._call(_allreduce, recvbuf.size, np.dtype(recvbuf.dtype), algorithm, "sum", None, factor, True)
        if isinstance(recvbuf, np.ndarray):
            recvbuf[:] = sendbuf
        self._sum(recvbuf, "sum", factor)

    def _sum(self, x: Array, op: str, factor: float) -> None:
        if isinstance(x, np.ndarray) and op == "sum":
            every = x * x.dtype.type(self.size) * x.dtype.type(factor)
            x[:] = every if self._sums is None else self._sums[len(self._script.sums)]
            self._script.sums.append(x.copy())

    def broadcast(self, x: Array, root: int) -> None:
        self._call(_broadcast, x.nbytes, root)

    def lengths_of_all(self, length: int) -> list[int]:
        """Owners, once they were sent their parts, have as much to tell all, but for what is the same for each."""
        self._call(_lengths)
        if self._to_owners is None:
            return [length] * self.size
        more = length - self._to_owners[self.rank]
        return [max(1, part + more) if part else 0 for part in self._to_owners]

    def gather_to_all(self, x: Array, counts: list[int] | None = None) -> tuple[Array, list[int]]:
        counts = counts or self.lengths_of_all(x.size)
        if min(counts) == max(counts):
            self._call(_gather, x.nbytes)
            return as_array(Tiled(as_ghost(x), self.size)), counts
        self._call(_gather, *(count * x.itemsize for count in counts))
        return as_array(Ghost(as_ghost(x).ops, sum(counts), x.dtype)), counts

    def swap_lengths(self, lengths: list[int]) -> list[int]:
        self._to_owners = lengths
        self._call(_all_to_all, LENGTH)
        return [lengths[self.rank]] * self.size

    def send_and_receive(self, outgoing: Mapping[int, Array], incoming: Mapping[int, int], like: Array
                         ) -> dict[int, Array]:
        """What comes is known as far as ``like`` is, where that is as long."""
        def ahead(rank: int) -> int:
            return (rank - self.rank) % self.size

        self._call(_messages, tuple((ahead(rank), x.nbytes) for rank, x in outgoing.items()),
                   tuple((ahead(rank), nbytes) for rank, nbytes in incoming.items()))
        ghost = as_ghost(like)
        return {rank: as_array(Ghost(ghost.ops, nbytes, BYTE, ghost.head if nbytes == ghost.nbytes else None))
                for rank, nbytes in incoming.items()}

    def meanwhile(self, work: Iterator[None]) -> AbstractContextManager[None]:
        return self._script.tape.meanwhile(work)

    def __getattr__(self, name: str) -> Any:
        raise Unknown(f"it uses Comm.{name}")


# ---- the calls, of one rank

def _nothing(link: RecordingLink) -> None:
    """What ends a script."""


def _agreement(link: RecordingLink) -> None:
    """By dissemination, see ``mpicomp.comm.transport.MpiLink.extremes``."""
    shift, numbers = 1, as_array(Ghost(link.ops, AGREEMENT, np.int64))
    while shift < link.size:
        link.sendrecv(numbers, (link.rank + shift) % link.size, numbers, (link.rank - shift) % link.size)
        shift *= 2


def _allreduce(link: RecordingLink, n: int, dtype: np.dtype, algorithm: str, op: str, kind: str | None,
               factor: float, out_of_place: bool = False) -> None:
    flat, chosen = Ghost(link.ops, n, dtype), _chosen(link, n, dtype, algorithm, op, kind)
    if n == 0:
        return
    source = Ghost(link.ops, n, dtype) if out_of_place else None
    if link.size == 1:
        if out_of_place:
            link.ops.copied(flat)
        if factor != 1.0:
            link.ops.scale(flat, factor)
        return
    options = {"kind": _half(dtype, kind)} if _half(dtype, kind) and chosen != "native" else {}
    allreduce.get(chosen)(link, flat, op, link.ops, link.scratch(dtype), factor, source, **options)


def _chosen(link: RecordingLink, n: int, dtype: np.dtype, algorithm: str, op: str, kind: str | None,
            *how: object) -> str:
    return schedule(Vector(as_array(Ghost(link.ops, n, dtype)), _half(dtype, kind), None), op, algorithm, link)


def _half(dtype: np.dtype, kind: str | None) -> str | None:
    return kind or ("float16" if dtype == np.float16 else None)


def _broadcast(link: RecordingLink, nbytes: int, root: int) -> None:
    broadcast(link, as_array(Ghost(link.ops, nbytes, BYTE)), root)


def _lengths(link: RecordingLink) -> None:
    """MPI's own all-gather of a length of every rank, by Bruck's algorithm."""
    distance = 1
    while distance < link.size:
        known = as_array(Ghost(link.ops, LENGTH * min(distance, link.size - distance), BYTE))
        with link.tape.inside_mpi():
            link.sendrecv(known, (link.rank - distance) % link.size, known, (link.rank + distance) % link.size)
        distance *= 2


def _gather(link: RecordingLink, *nbytes: int) -> None:
    """Of every rank so many bytes, all as many where one number is given."""
    ops, counts = link.ops, list(nbytes) * (link.size if len(nbytes) == 1 else 1)
    gather_to_all(link, as_array(Ghost(ops, counts[link.rank], BYTE)), as_array(Ghost(ops, sum(counts), BYTE)), counts)


def _all_to_all(link: RecordingLink, nbytes: int) -> None:
    """MPI's own, of so many bytes for each other rank: in pairs, or by Bruck's algorithm."""
    distance = 1
    while distance < link.size:
        blocks = 1 if link.size <= PAIRWISE else sum(1 for block in range(link.size) if block & distance)
        message = as_array(Ghost(link.ops, blocks * nbytes, BYTE))
        with link.tape.inside_mpi():
            link.sendrecv(message, (link.rank + distance) % link.size, message, (link.rank - distance) % link.size)
        distance = distance + 1 if link.size <= PAIRWISE else 2 * distance


def _messages(link: RecordingLink, outgoing: tuple[tuple[int, int], ...], incoming: tuple[tuple[int, int], ...]
              ) -> None:
    """Sent and received all at once; ranks are counted from this one on."""
    requests = [link.irecv(as_array(Ghost(link.ops, nbytes, BYTE)), (link.rank + ahead) % link.size)
                for ahead, nbytes in incoming]
    requests += [link.isend(as_array(Ghost(link.ops, nbytes, BYTE)), (link.rank + ahead) % link.size)
                 for ahead, nbytes in outgoing]
    for request in requests:
        link.wait(request)
