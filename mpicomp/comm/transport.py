"""Counted point-to-point messages of a private communicator, which all our schedules use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, repeat
from types import TracebackType
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from .._util.partition import pieces
from ..allreduce import segments
from ..allreduce.native import least_bytes
from ..errors import MpicompError, RankLeft
from ..ops.device import device_of, ready
from ..types import Array
from .buffers import Buffer
from .interfaces import Request, Traffic
from .job import before_finalize
from .mpi_types import MPI_OPS
from .naps import NAP, Naps
from .node_memory import Node, layout_of, ranks_by_node
from .safety.call_log import CallLog
from .safety.revocation import announce
from .settings import Settings

# MPI libraries of the 3.1 standard take counts below 2**31 only.
MAX_COUNT = 2**30
TAG = 1
AGREEMENT_TAG = 3  # 2 is the watchdogs'
LEAVING_TAG = 4
REASON_BYTES = 200  # the longest text of a message with that tag
TESTS = 64  # of a request before MPI waits for it and the message above together, which costs more per test
CANCEL_S = 0.5  # a receive whose message has begun to arrive may take so long to end
DONE = object()  # returned for exhausted work

Started = MPI.Request | list[MPI.Request]  # one per message


def requests_of(started: Started | None) -> list[MPI.Request]:
    """Return MPI's requests of a message; none if it is empty."""
    return [] if started is None else started if isinstance(started, list) else [started]


# By address: the memory of receives that stay posted, these requests, and those of the running schedule. MPI may write
# there even if no code holds the link any more.
_received_into: dict[int, tuple[np.ndarray, MPI.Request, list[tuple[Started, bool]]]] = {}
_broken: list[MpiLink] = []  # links whose communicators are never freed


def _take_back() -> None:
    """Cancel these receives before MPI is finalized: UCX warns of each that is left."""
    for _, request, running in _received_into.values() if not MPI.Is_finalized() else ():
        if request and not running:  # otherwise a thread waits for it
            with suppress(MPI.Exception):
                request.Cancel()
                request.Wait()


class BreakOnError:
    """Context in which ranks depend on each other's messages: an exception that leaves it breaks the link.

    The exception is a refusal, a ``MpicompError`` before the first message of this rank.
    """

    def __init__(self, link: MpiLink) -> None:
        self._link = link

    def __enter__(self) -> None:
        self._link.check()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        link, across = self._link, self._link.known_across
        if error is None and across is None and not link.started:
            return
        running = [link.started] if across is None else [link.started, across.started]
        refused = isinstance(error, MpicompError) and not isinstance(error, RankLeft) and not any(running)
        if error is not None and not refused:
            link.leave(f"rank {link.rank}", f"{type(error).__name__}: {error}")
            for requests in running:
                requests.clear()
        for requests in filter(None, running):  # some messages are still in flight where `Messages` were started
            requests[:] = [one for one in requests if any(requests_of(one[0]))]


class Meanwhile:
    """Context in which a link's waits advance ``work``, which is complete at its end; that of an outer one rests."""

    def __init__(self, link: MpiLink, work: Iterator[None]) -> None:
        self._link, self._work, self._outer = link, work, link.work

    def __enter__(self) -> None:
        self._link.work = self._work

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._link.work = self._outer
        if kind is None:
            for _ in self._work:
                pass


class MpiLink:
    """Counted messages between the ranks of ``comm``: the `mpicomp.allreduce.interfaces.Link` of real jobs.

    A vector of more than ``max_count`` elements goes in several messages. Requests are waited for one by one: after a
    failed peer ``MPI_Waitall`` may leave requests of the others in an undefined state.

    A rank that leaves a schedule in the middle, by an exception, sends its reason to all others. They wait for this
    message together with every request, so they raise, too, and each further schedule raises at once.

    Parameters
    ----------
    comm : MPI.Intracomm
        Private to this link, which frees it.
    log : CallLog, optional
        Logs the messages.
    on_leave : callable, optional
        Called once, when the link breaks.

    Attributes
    ----------
    patient : bool
        True: sleep in all waits, see `wait_patiently`. Ranks may differ, in the threads that call.
    blocks : bool
        True until the first `wait_patiently`, on all ranks: collectives of MPI keep the core until all have come.
    broken : str or None
        The reason why no schedule can run any more.
    break_on_error : BreakOnError
        Context for all code in which ranks wait for each other's messages.
    started : list of (request, whether it sends)
        Messages of the running schedule, and others in flight.
    work : iterator or None
        Work that waits advance; see `meanwhile`.
    """

    def __init__(self, comm: MPI.Intracomm, settings: Settings, log: CallLog | None = None,
                 on_leave: Callable[[], None] | None = None) -> None:
        self.comm, self.settings, self.reproducible = comm, settings, settings.reproducible
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        # owners: ranks on every node; threads: of every rank
        self.nodes, self.owners, self.ranks_per_node, self.threads = layout_of(comm, settings.node_limit)
        self.one_node = self.nodes == 1
        self.rows = settings.rows(self.ranks_per_node, self.nodes)
        self.takes_devices = settings.gpu_path[0] == "direct"
        self._node: Node | None = None
        self.known_across: MpiLink | None = None  # after the first use of ``across``
        self._crosses: bool | None = None  # True if there is one; None: not known yet
        self.max_count = MAX_COUNT
        self.bytes_sent = self.bytes_received = self.messages = self.modelled = 0
        self.work: Iterator[None] | None = None
        self._log, self._on_leave = log, on_leave
        self.patient, self.blocks = False, True
        self._naps = Naps(self.check)
        self._bandwidth: float | None = None  # None: not measured yet
        self._ranks_by_node: list[list[int]] = []  # not known yet
        self._mine, self._theirs = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self._rounds = [  # of `extremes`, which starts them in every call: with new requests it takes 1.6 times as long
            (comm.Recv_init(self._theirs, (self.rank - shift) % self.size, AGREEMENT_TAG),
             comm.Send_init(self._mine, (self.rank + shift) % self.size, AGREEMENT_TAG))
            for shift in (1 << k for k in range((self.size - 1).bit_length()))
        ]
        self.started: list[tuple[Started, bool]] = []
        self.break_on_error = BreakOnError(self)
        self.broken: str | None = None
        self._reason = np.zeros(REASON_BYTES, np.uint8)
        self._leaving = MPI.Request()
        if self.size > 1:
            before_finalize(_take_back)
            self._leaving = comm.Irecv(self._reason, MPI.ANY_SOURCE, LEAVING_TAG)
            _received_into[self._reason.ctypes.data] = self._reason, self._leaving, self.started
        self._status = MPI.Status()
        self._abandoned: list[MPI.Request] = []  # requests whose buffers MPI may still use

    def check(self) -> None:
        """Raise RankLeft if a rank has left a schedule in the middle."""
        if self.broken is None and self._leaving and self._leaving.Test(self._status):
            self._on_departure(self._status)
        if self.broken is not None:
            raise RankLeft(f"{self.broken}: free this communicator on all ranks, and make a new Comm")

    def _on_departure(self, status: MPI.Status) -> None:
        """Break the link with the reason of another rank, and pass it on: other ranks may wait for this one."""
        who, _, why = self._reason[: status.count].tobytes().decode(errors="replace").partition("\n")
        self.leave(who, why)

    def leave(self, who: str, why: str) -> None:
        """Break the link: send the reason to all other ranks and cancel the receives of the running schedule."""
        if self.broken is not None or self.size == 1:
            return
        line = why.partition("\n")[0].rstrip(": ")
        self.broken = f"{who} left a collective of this communicator in the middle ({line})"
        text = np.frombuffer(f"{who}\n{why}".encode(errors="replace")[:REASON_BYTES], np.uint8)
        with suppress(MPI.Exception):  # ranks have died, or the communicator is revoked
            for peer in range(self.size):
                if peer != self.rank:
                    self._abandoned.append(self.comm.Isend(text, peer, LEAVING_TAG))
        for request, sends in self.started:
            for one in requests_of(request):
                self._abandon(one, sends)
        if self.known_across is not None:
            self.known_across.leave(who, why)
        if self._on_leave is not None:
            self._on_leave()

    def _abandon(self, request: MPI.Request, sends: bool) -> None:
        """Cancel a receive; keep a request that is not complete, and so its buffer."""
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
        """Ranks of this node and the memory they share; the first use is collective."""
        if self._node is None:
            self._node = Node(self.comm, self.check, self.settings.node_limit, self.owners)
        return self._node

    @property
    def across(self) -> MpiLink | None:
        """Link to the ranks of the other nodes at this rank's place on the node; the first use is collective.

        None if some node has no rank at this place.
        """
        if self._crosses is None:
            self._crosses = self.node.rank < self.owners
            comm = cast("MPI.Intracomm", self.comm.Split(self.node.rank if self._crosses else MPI.UNDEFINED, self.rank))
            if self._crosses:
                settings = self.settings._replace(reproducible=False)
                self.known_across = MpiLink(announce(comm), settings, self._log)
                self.known_across.patient, self.known_across.blocks = self.patient, self.blocks
                if self.patient and not self.slow:
                    self.known_across._naps.wake_early()
        return self.known_across

    @property
    def ranks_by_node(self) -> list[list[int]]:
        """Ascending ranks of every node; the first use is collective."""
        if not self._ranks_by_node:
            self._ranks_by_node = ranks_by_node(self.comm, self.settings.node_limit)
        return self._ranks_by_node

    @property
    def slow(self) -> bool:
        """True if the network between nodes is slow enough to cut long messages; the first use is collective."""
        return self.bandwidth < segments.SLOW

    @property
    def bandwidth(self) -> float:
        """Bytes per second that a rank sends to its neighbour; the first use is collective, and is not counted."""
        if self._bandwidth is None:
            patient, self.patient = self.patient, False  # naps would count as a slow network
            counted = self.bytes_sent, self.bytes_received, self.messages, self.modelled
            try:
                self._bandwidth = segments.bandwidth(self, self.comm.Barrier)
            finally:
                self.patient = patient
                self.bytes_sent, self.bytes_received, self.messages, self.modelled = counted
        return self._bandwidth

    def wait_patiently(self, patient: bool = True) -> None:
        """From now on, sleep between tests in waits that are not short, or no longer; collective.

        Between nodes the first call measures the network, while no other thread computes; the others are local. Where
        all messages cross a fast one, news on a socket ends naps: long messages arrive in several tests.
        """
        if self.nodes > 1 and not self.slow and self.ranks_per_node == 1:
            self._naps.wake_early()
        self.patient, self.blocks = patient, False
        if self.known_across is not None:
            self.known_across.wait_patiently(patient)

    def free(self) -> None:
        """Free the communicators; collective."""
        for part in (self.known_across, self._node):
            if part is not None:
                part.free()
        self.known_across = self._node = self._crosses = None
        if self.broken is not None:  # the next communicator could get its number, and so messages still under way
            _broken.append(self)
            return
        if self._leaving:
            self._leaving.Cancel()
            self._leaving.Wait()
            del _received_into[self._reason.ctypes.data]
        for request in chain(*self._rounds):
            request.Free()
        self.comm.Free()

    def meanwhile(self, work: Iterator[None]) -> Meanwhile:
        """Within the block, advance ``work`` while this rank waits; complete it at the end of the block."""
        return Meanwhile(self, work)

    def isend(self, array: Array, dest: int, most: int | None = None) -> Started | None:
        """Start to send ``array``, which must not change until the request is complete.

        A longer one goes in messages of ``most`` elements; the receiver has to give the same number.
        """
        if array.size == 0:
            return None
        ready(array)
        self.bytes_sent += array.nbytes
        if array.size <= (most or self.max_count):
            self.messages += 1
            return self._started(self.comm.Isend(array, dest, TAG), True, dest, array.nbytes)
        requests = [self.comm.Isend(part, dest, TAG) for part in self._parts(array, most)]
        self.messages += len(requests)
        return self._started(requests, True, dest, array.nbytes)

    def irecv(self, array: Array, source: int, most: int | None = None) -> Started | None:
        """Start to receive into ``array``; ``most`` as in `isend`."""
        if array.size == 0:
            return None
        ready(array)
        self.bytes_received += array.nbytes
        if array.size <= (most or self.max_count):
            return self._started(self.comm.Irecv(array, source, TAG), False, source, array.nbytes)
        requests = [self.comm.Irecv(part, source, TAG) for part in self._parts(array, most)]
        return self._started(requests, False, source, array.nbytes)

    def _started(self, request: Started, sends: bool, peer: int, nbytes: int) -> Started:
        self.started.append((request, sends))
        if self._log is not None:
            self._log.posted(request, sends, peer, nbytes, self.comm)
        return request

    def _parts(self, array: Array, most: int | None = None) -> Iterator[Array]:
        """Return the array in pieces of ``most`` elements, or of as many as MPI can count."""
        return (array[begin:end] for begin, end in pieces(0, array.size, most or self.max_count))

    def wait(self, request: Any) -> None:
        """Wait for a request of `isend`, `irecv` or `Comm.start_allreduce`; advance the work of `meanwhile`."""
        if request is None:
            return
        if self._log is not None:
            self._log.wait(request)
        for one in request if isinstance(request, list) else (request,):
            while self.work is not None and not one.Test():
                if next(self.work, DONE) is DONE:
                    self.work = None
                os.sched_yield()  # to a rank on the same core, which may have to send the message
            self._finish(one, self.patient)

    def _finish(self, request: Request, patient: bool) -> None:
        """Wait for a request; raise if a rank leaves the schedule."""
        if patient:
            self._naps.until_done(request)
        elif not isinstance(request, MPI.Request):  # an all-reduce in flight, on a link of its own
            request.Wait()
        else:
            for _ in repeat(None, TESTS):
                if request.Test():
                    return
            if MPI.Request.Waitany([request, self._leaving], self._status) == 1:
                self._on_departure(self._status)
                self.check()

    def sendrecv(self, outgoing: Array, dest: int, incoming: Array, source: int) -> None:
        """Send and receive at once; wait for both."""
        received = self.irecv(incoming, source)
        sent = self.isend(outgoing, dest)
        self.wait(received)
        self.wait(sent)

    def native_allreduce(self, work: Array, op: str, source: Array | None = None) -> None:
        """Run MPI_Allreduce on ``source``, or in place, in calls of at most ``max_count`` elements.

        Open MPI's non-blocking collectives crash on device memory: for such arrays a patient rank blocks, too.
        """
        ready(work)
        blocking = self.blocks or device_of(work) is not None
        if blocking and work.size <= self.max_count:
            self.comm.Allreduce(MPI.IN_PLACE if source is None else source, work, MPI_OPS[op])
            self.count_native(work.nbytes)
            return
        given: Iterator[Buffer] = repeat(MPI.IN_PLACE) if source is None else self._parts(source)
        for own, part in zip(given, self._parts(work), strict=False):
            if blocking:
                self.comm.Allreduce(own, part, MPI_OPS[op])
            else:
                self._complete(self.comm.Iallreduce(own, part, MPI_OPS[op]))
        self.count_native(work.nbytes)

    def _complete(self, collective: MPI.Request) -> None:
        """Wait for a non-blocking collective of MPI; the buffers of one that is given up are kept."""
        self.started.append((collective, True))  # first: the block may raise at once
        self._naps.begin()
        with self.break_on_error:
            self.wait(collective)

    def extremes(self, number: int, patient: bool) -> tuple[int, int]:
        """Return the least and the greatest ``number`` of all ranks, by dissemination.

        In round k a rank sends its result so far, 16 bytes, to the rank 2^k places on: ceil(log2 p) messages. A patient
        rank sleeps between tests after a while. Ranks that disagree may differ in ``patient``; messages match either
        way. They do not count as traffic.
        """
        least = greatest = number
        patient = patient or self.patient
        self._naps.begin()
        with self.break_on_error:
            for received, sent in self._rounds:
                self._mine[0], self._mine[1] = least, greatest
                self.started += (received, False), (sent, True)
                received.Start()
                sent.Start()
                self._finish(received, patient)
                self._finish(sent, patient)
                del self.started[-2:]  # these requests stay
                low, high = self._theirs.tolist()
                least, greatest = low if low < least else least, high if high > greatest else greatest
        return least, greatest

    def gather_lengths(self, length: int) -> list[int]:
        """Return the ``length`` of every rank, by MPI's own all-gather: 8 bytes each."""
        self.check()
        mine, lengths = np.array([length], np.int64), np.empty(self.size, np.int64)
        if self.blocks:
            self.comm.Allgather(mine, lengths)
        else:
            self._complete(self.comm.Iallgather(mine, lengths))
        self.count_modelled(8 * (self.size - 1))
        return lengths.tolist()

    def swap_lengths(self, lengths: list[int]) -> list[int]:
        """Send ``lengths[r]`` to each rank r, by MPI's own all-to-all; return the lengths received."""
        self.check()
        mine, theirs = np.array(lengths, np.int64), np.empty(self.size, np.int64)
        if self.blocks:
            self.comm.Alltoall(mine, theirs)
        else:
            self._complete(self.comm.Ialltoall(mine, theirs))
        self.count_modelled(8 * (self.size - 1))
        return theirs.tolist()

    def uncount(self, nbytes: int) -> None:
        """Subtract bytes of receive buffers that messages did not fill."""
        self.bytes_received -= nbytes

    def count_native(self, nbytes: int) -> None:
        """Count an all-reduce of MPI, or another library, of a vector of ``nbytes``."""
        self.count_modelled(least_bytes(nbytes, self.size))

    def count_modelled(self, nbytes: int, received: int | None = None) -> None:
        """Count bytes that a collective of MPI or NCCL sends and receives (None: as many) by its formula."""
        self.bytes_sent += nbytes
        self.bytes_received += nbytes if received is None else received
        self.modelled += nbytes

    def traffic(self, modelled: int = 0) -> Traffic:
        """Return all bytes counted here, and ``modelled`` further bytes of MPI's own collectives."""
        shared = self._node.bytes_shared if self._node else 0
        own = Traffic(self.bytes_sent + modelled, self.bytes_received + modelled, self.messages,
                      self.modelled + modelled, shared)
        return own + self.known_across.traffic() if self.known_across else own
