"""A private communicator's point-to-point verbs, counted: what every schedule of ours sends and receives through."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import repeat
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from .._util.partition import pieces
from ..allreduce.cost import least_bytes
from ..errors import MpicompError, RankLeft
from ..ops.device import device_of, ready
from .interfaces import Traffic
from .node_memory import Node, split_node
from .safety.call_log import Calls
from .safety.revocation import made
from .settings import Settings

# MPI libraries of the 3.1 standard take counts below 2**31 only.
MAX_COUNT = 2**30
TAG = 1
AGREEMENT_TAG = 3  # 2 is the watchdogs'
LEAVING_TAG = 4
REASON_BYTES = 200  # of a message with that tag: the longest text
TESTS = 64  # of a request before MPI waits for it and the message above together, which costs more per look
CANCEL_S = 0.5  # a receive whose message has begun to arrive may take so long to end
DONE = object()  # what an iterator of work that is used up gives
# A patient rank waits for others' work, such as the leader's selection, and may share a core with it: after a while it
# looks only now and then. A nap is short beside the wait that led to it.
SPIN_NS = 100_000
NAP = 1e-4  # seconds

MPI_OPS = {
    "sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX,
    "land": MPI.LAND, "lor": MPI.LOR, "lxor": MPI.LXOR, "band": MPI.BAND, "bor": MPI.BOR, "bxor": MPI.BXOR,
}  # fmt: skip
OTHER_OPS = ("MAXLOC", "MINLOC", "REPLACE", "NO_OP")
# Numbers in memory, but not to be added as such: MPI rejects them or gives them another meaning.
NOT_NUMBERS = (MPI.BYTE, MPI.PACKED, MPI.LOGICAL)


def is_in_place(sendbuf: object) -> bool:
    """``MPI.IN_PLACE``, or None, which mpi4py takes for it."""
    return sendbuf is None or isinstance(sendbuf, type(MPI.IN_PLACE))


def op_name(op: MPI.Op) -> str:
    """Our name of an MPI operation; only those in ``MPI_OPS`` are for our schedules."""
    if op is MPI.SUM:
        return "sum"
    for name, known in MPI_OPS.items():
        if op == known:
            return name
    return next((name for name in OTHER_OPS if op == getattr(MPI, name)), "user-defined")


def numpy_dtype(datatype: MPI.Datatype | str) -> np.dtype | None:
    """The NumPy dtype of a predefined MPI datatype, or of its letter; None for the others."""
    if isinstance(datatype, str):
        datatype = MPI.Datatype.fromcode(datatype)
    if not isinstance(datatype, MPI.Datatype) or datatype == MPI.DATATYPE_NULL or not datatype.is_predefined:
        return None
    if datatype in NOT_NUMBERS or not datatype.typestr:
        return None
    return np.dtype(datatype.typestr)


def raw_bytes(obj: Any) -> memoryview:
    """The memory of anything mpi4py takes as a buffer; needs no dtype, and keeps nothing of the object's protocol."""
    memory: Any = MPI.buffer(obj)  # has the buffer protocol, which its stub says for Python 3.12 on
    return memoryview(memory)


def specification(array: Any, count: int | None = None) -> tuple[MPI.buffer, int, MPI.Datatype]:
    """``array`` as mpi4py takes it with least to ask: a bare array costs it about a microsecond more in every call.

    ``count`` (all elements, by default) is that of one rank's block where an array holds one of every rank: an
    all-gather's output, both arrays of a reduce-scatter of blocks. Nothing checks it against the array.
    """
    return MPI.buffer(array), array.size if count is None else count, MPI.Datatype.fromcode(array.dtype.char)


def layout_of(comm: MPI.Intracomm, limit: int) -> tuple[int, int, int]:
    """Nodes, and the fewest and most ranks on one; by reductions, so that no rank keeps a list of all (collective)."""
    node = split_node(comm, limit)
    first, ranks = np.array([node.Get_rank() == 0], np.int64), np.array([-1, 1], np.int64) * node.Get_size()
    node.Free()
    comm.Allreduce(MPI.IN_PLACE, first, MPI.SUM)
    comm.Allreduce(MPI.IN_PLACE, ranks, MPI.MAX)
    return int(first[0]), -int(ranks[0]), int(ranks[1])


def nap_until_done(request: MPI.Request, nap: float = NAP, listen: Callable[[], object] = int) -> None:
    """Look for the end of a request, after a while only every ``nap`` seconds; call ``listen`` between looks."""
    nap_from = time.monotonic_ns() + SPIN_NS
    while not request.Test():
        listen()
        if time.monotonic_ns() > nap_from:
            time.sleep(nap)


# By address, the memory of receives that stay posted, these, and the requests of a schedule that runs beside: MPI may
# write there although nobody has the Link any more.
_received_into: dict[int, tuple[np.ndarray, MPI.Request, list[Any]]] = {}
_broken: list[Any] = []  # links whose communicators are never freed


@atexit.register
def _take_back() -> None:
    """Cancel these receives before MPI is finalized: UCX warns of each that is left."""
    for _, request, running in _received_into.values() if not MPI.Is_finalized() else ():
        if request and not running:  # else a thread waits for it
            with suppress(MPI.Exception):
                request.Cancel()
                request.Wait()


class Schedule:
    """Context in which ranks depend on each other's messages: an exception that leaves it breaks the link.

    Refusals (a ``MpicompError`` before this rank has started a message) do not.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self.started: list[tuple[Any, bool]] = []  # (request, whether it sends) of the schedule that runs

    def __enter__(self) -> None:
        self._link.check()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        link, across = self._link, self._link.known_across
        running = [self.started] if across is None else [self.started, across.schedule.started]
        refused = isinstance(error, MpicompError) and not isinstance(error, RankLeft) and not any(running)
        if error is not None and not refused:
            link.leave(f"rank {link.rank}", f"{type(error).__name__}: {error}")
        for requests in running:
            requests.clear()


class Link:
    """Counted verbs between the ranks of ``comm``; a vector over ``max_count`` elements goes in several messages.

    Both sides know the length of every message, so an empty one is not sent at all. Requests are waited for one by
    one: after a failed peer ``MPI_Waitall`` may leave requests of the others in an undefined state.

    A rank that leaves a schedule in the middle, by an exception, sends its reason to all others. They wait for this
    message beside every request, so they raise, too, and each further schedule raises at once.
    """

    def __init__(self, comm: MPI.Intracomm, settings: Settings):
        self.comm, self.settings, self.reproducible = comm, settings, settings.reproducible
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.nodes, self.owners, self.ranks_per_node = layout_of(comm, settings.node_limit)  # owners: on every node
        self.one_node = self.nodes == 1
        self.rows = settings.rows(self.ranks_per_node, self.nodes)  # what ``auto`` goes by, a device each
        self.takes_devices = settings.gpu_path[0] == "direct"  # whether MPI reads and writes device memory
        self._node: Node | None = None
        self.known_across: Link | None = None  # once ``across`` has been used
        self._crosses: bool | None = None  # whether there is one; None: not known yet
        self.max_count = MAX_COUNT
        self.bytes_sent = self.bytes_received = self.messages = self.modelled = 0
        self._meanwhile: Iterator[None] | None = None
        self.log: Calls | None = None  # is told of messages
        self.slow: bool | None = None  # whether the network between nodes is, once it matters
        self._mine, self._theirs = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self._pair = specification(self._mine), specification(self._theirs)
        self.patient = False  # whether all waits leave the core to others after a while
        self.schedule = Schedule(self)
        self.broken: str | None = None  # why no schedule can run any more
        self.on_leave: Callable[[], None] | None = None  # is called once, when the link breaks
        self._reason = np.zeros(REASON_BYTES, np.uint8)
        self._leaving = MPI.Request()
        if self.size > 1:
            self._leaving = comm.Irecv(self._reason, MPI.ANY_SOURCE, LEAVING_TAG)
            _received_into[self._reason.ctypes.data] = self._reason, self._leaving, self.schedule.started
        self._status = MPI.Status()
        self._abandoned: list[Any] = []  # requests whose buffers MPI may still use

    def check(self) -> None:
        """Raise RankLeft if a rank has left a schedule in the middle."""
        if self.broken is None and self._leaving and self._leaving.Test(self._status):
            self._heard(self._status)
        if self.broken is not None:
            raise RankLeft(f"{self.broken}: free this communicator on all ranks, and make a new Comm")

    def _heard(self, status: MPI.Status) -> None:
        """Another rank's reason has come: it is passed on, since ranks may wait for this one."""
        who, _, why = self._reason[: status.count].tobytes().decode(errors="replace").partition("\n")
        self.leave(who, why)

    def leave(self, who: str, why: str) -> None:
        """Break the link: tell all other ranks, and take back the receives of the schedule that runs."""
        if self.broken is not None or self.size == 1:
            return
        line = why.partition("\n")[0].rstrip(": ")
        self.broken = f"{who} left a collective of this communicator in the middle ({line})"
        text = np.frombuffer(f"{who}\n{why}".encode(errors="replace")[:REASON_BYTES], np.uint8)
        with suppress(MPI.Exception):  # of ranks that died, or a communicator that was revoked
            for peer in range(self.size):
                if peer != self.rank:
                    self._abandoned.append(self.comm.Isend(text, peer, LEAVING_TAG))
        for request, sends in self.schedule.started:
            for one in request if isinstance(request, list) else (request,):
                self._abandon(one, sends)
        if self.known_across is not None:
            self.known_across.leave(who, why)
        if self.on_leave is not None:
            self.on_leave()

    def _abandon(self, request: MPI.Request, sends: bool) -> None:
        """Cancel a receive; a request that goes on keeps its buffer."""
        with suppress(MPI.Exception):
            if request and not sends:
                request.Cancel()
                deadline = time.monotonic() + CANCEL_S
                while not request.Test() and time.monotonic() < deadline:
                    time.sleep(NAP)
        if request:
            self._abandoned.append(request)

    @property
    def node(self) -> Node:
        """The ranks of this node and the memory they share; the first use is collective."""
        if self._node is None:
            self._node = Node(self.comm, self.progress, self.settings.node_limit, self.owners)
        return self._node

    @property
    def across(self) -> Link | None:
        """The ranks of the other nodes that have this one's place on theirs; the first use is collective.

        None for a rank whose place not every node has.
        """
        if self._crosses is None:
            self._crosses = self.node.rank < self.owners
            comm = cast("MPI.Intracomm", self.comm.Split(self.node.rank if self._crosses else MPI.UNDEFINED, self.rank))
            if self._crosses:
                self.known_across = Link(made(comm), self.settings._replace(reproducible=False))
                self.known_across.log, self.known_across.patient = self.log, self.patient
        return self.known_across

    def progress(self) -> None:
        """Let MPI get on with messages while this rank waits for something else."""
        self.check()

    def free(self) -> None:
        for part in (self.known_across, self._node):
            if part is not None:
                part.free()
        self.known_across = self._node = self._crosses = None
        if self.broken is not None:  # else the next communicator could get its number, and messages still under way
            _broken.append(self)
            return
        if self._leaving:
            self._leaving.Cancel()
            self._leaving.Wait()
            del _received_into[self._reason.ctypes.data]
        self.comm.Free()

    @contextmanager
    def meanwhile(self, work: Iterator[None]) -> Iterator[None]:
        """Within the block, waiting ranks advance ``work`` piece by piece; what is left of it is done at the end."""
        self._meanwhile = work
        try:
            yield
        finally:
            self._meanwhile = None
        for _ in work:
            pass

    def isend(self, array: Any, dest: int) -> Any:
        """Start sending ``array``; it must stay as it is until the request has been waited for."""
        if array.size == 0:
            return None
        ready(array)
        self.bytes_sent += array.nbytes
        if array.size <= self.max_count:
            self.messages += 1
            return self._started(self.comm.Isend(array, dest, TAG), True, dest, array.nbytes)
        requests = [self.comm.Isend(part, dest, TAG) for part in self._parts(array)]
        self.messages += len(requests)
        return self._started(requests, True, dest, array.nbytes)

    def irecv(self, array: Any, source: int) -> Any:
        """Start receiving into ``array``."""
        if array.size == 0:
            return None
        ready(array)
        self.bytes_received += array.nbytes
        if array.size <= self.max_count:
            return self._started(self.comm.Irecv(array, source, TAG), False, source, array.nbytes)
        requests = [self.comm.Irecv(part, source, TAG) for part in self._parts(array)]
        return self._started(requests, False, source, array.nbytes)

    def _started(self, request: Any, sends: bool, peer: int, nbytes: int) -> Any:
        self.schedule.started.append((request, sends))
        if self.log is not None:
            self.log.posted(request, sends, peer, nbytes, self.comm)
        return request

    def _parts(self, array: Any) -> Iterator[Any]:
        """The array in pieces that MPI can count."""
        return (array[begin:end] for begin, end in pieces(0, array.size, self.max_count))

    def wait(self, request: Any) -> None:
        if request is None:
            return
        if self.log is not None:
            self.log.waiting = request
        for one in request if isinstance(request, list) else (request,):
            while self._meanwhile is not None and not one.Test():
                if next(self._meanwhile, DONE) is DONE:
                    self._meanwhile = None
                os.sched_yield()  # to a rank on the same core, whose message we may be waiting for
            self._finish(one, self.patient)

    def _finish(self, request: Any, patient: bool) -> None:
        """Wait for a request, or raise if a rank leaves the schedule."""
        if patient:
            nap_until_done(request, listen=self.check)
        elif not isinstance(request, MPI.Request):  # an all-reduce in flight, on a link of its own
            request.Wait()
        else:
            for _ in repeat(None, TESTS):
                if request.Test():
                    return
            if MPI.Request.Waitany([request, self._leaving], self._status) == 1:
                self._heard(self._status)
                self.check()

    def sendrecv(self, outgoing: Any, dest: int, incoming: Any, source: int) -> None:
        received = self.irecv(incoming, source)
        sent = self.isend(outgoing, dest)
        self.wait(received)
        self.wait(sent)

    def native_allreduce(self, work: Any, op: str, source: Any = None) -> None:
        """MPI_Allreduce of ``source``, or in place, in calls of at most ``max_count`` elements.

        Open MPI's non-blocking collectives crash on device memory: for such arrays a patient rank blocks, too.
        """
        ready(work)
        blocking = not self.patient or device_of(work) is not None
        given: Any = repeat(MPI.IN_PLACE) if source is None else self._parts(source)
        for own, part in zip(given, self._parts(work), strict=False):
            if blocking:
                self.comm.Allreduce(own, part, MPI_OPS[op])
            else:
                self.wait(self.comm.Iallreduce(own, part, MPI_OPS[op]))
        self.count_modelled(least_bytes(work.nbytes, self.size))

    def extremes(self, number: int, patient: bool) -> tuple[int, int]:
        """The least and the greatest ``number`` of all ranks, by dissemination: ceil(log2 p) messages of 16 bytes.

        In round k a rank tells what it knows to the one 2^k places on. A patient rank leaves the core to others after a
        while. Each is so by its own reckoning, which may be wrong when ranks disagree; so these are messages, which
        match either way. They are not counted as traffic.
        """
        least = greatest = number
        shift = 1
        with self.schedule:
            while shift < self.size:
                self._mine[0], self._mine[1] = least, greatest
                self._swap((self.rank + shift) % self.size, (self.rank - shift) % self.size, patient or self.patient)
                low, high = self._theirs.tolist()
                least, greatest = low if low < least else least, high if high > greatest else greatest
                shift *= 2
        return least, greatest

    def _swap(self, dest: int, source: int, patient: bool) -> None:
        """One round of ``extremes``."""
        outgoing, incoming = self._pair
        received = self.comm.Irecv(incoming, source, AGREEMENT_TAG)
        self.schedule.started.append((received, False))
        sent = self.comm.Isend(outgoing, dest, AGREEMENT_TAG)
        self.schedule.started.append((sent, True))
        self._finish(received, patient)
        self._finish(sent, patient)

    def gather_lengths(self, length: int) -> list[int]:
        """The ``length`` of every rank, by MPI's own all-gather: 8 bytes each."""
        self.check()
        lengths = np.empty(self.size, np.int64)
        self.comm.Allgather(np.array([length], np.int64), lengths)
        self.count_modelled(8 * (self.size - 1))
        return lengths.tolist()

    def count_modelled(self, nbytes: int) -> None:
        self.bytes_sent += nbytes
        self.bytes_received += nbytes
        self.modelled += nbytes

    def traffic(self, modelled: int = 0) -> Traffic:
        """All bytes counted here, and ``modelled`` ones that MPI's own collectives have sent besides."""
        shared = self._node.bytes_shared if self._node else 0
        own = Traffic(self.bytes_sent + modelled, self.bytes_received + modelled, self.messages,
                      self.modelled + modelled, shared)
        return own + self.known_across.traffic() if self.known_across else own
