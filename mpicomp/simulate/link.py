"""Link of the dense schedules of one simulated rank: everything goes onto its tape."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from ..allreduce import halving_doubling
from ..allreduce.interfaces import Scratch
from ..allreduce.segments import SLOW
from ..allreduce.table import built_in
from ..types import Array
from .ghost import Ghost
from .ghost_ops import GhostOps, as_ops
from .tape import Tape

# Ranks below which, and bytes below which MPI's all-reduce sends the whole vector in log2(p) steps, by Open MPI 5's own
# rules (coll_tuned_decision_fixed.c), simplified: what else it does with short vectors takes about as many steps.
DOUBLING = ((16, 8 << 10), (32, 4 << 10), (64, 128), (128, 256 << 10), (256, 256 << 10), (512, 4 << 10),
            (4096, 16 << 10), (math.inf, 32 << 10))  # fmt: skip

LINE = 64  # bytes of a cache line
Request = tuple[bool, int, int]  # whether it sends, number of the message, peer of a receive


@dataclass(frozen=True)
class Place:
    """A rank among ``size`` ranks that fill nodes of ``ranks_per_node`` one by one."""

    rank: int
    size: int
    ranks_per_node: int
    bandwidth: float = math.inf  # of a node's link, bytes per second: the length of cut messages depends on it

    @property
    def nodes(self) -> int:
        return -(-self.size // self.ranks_per_node)

    @property
    def fewest(self) -> int:
        """Ranks on the node that has the fewest, the last one."""
        return self.size - (self.nodes - 1) * self.ranks_per_node

    @property
    def local(self) -> tuple[int, int]:
        """The place on the node, and how many ranks the node has."""
        node, local = divmod(self.rank, self.ranks_per_node)
        return local, min(self.ranks_per_node, self.size - node * self.ranks_per_node)

    def slow(self, beside: int = 1) -> bool:
        """Return what a rank finds out about the network by itself, if so many on its node send at once."""
        return self.nodes > 1 and self.bandwidth / beside < SLOW


def slice_of(n: int, itemsize: int, owners: int, place: int) -> slice:
    """Return a node's slice of ``n`` elements at a place, as ``ops/cpu/node.cpp`` cuts them: whole cache lines."""
    line = max(1, LINE // itemsize)
    length = line * -(-n // (owners * line))
    return slice(min(n, place * length), min(n, (place + 1) * length))


def doubling_bytes(size: int) -> int:
    """Return the bytes from which on MPI's own all-reduce is taken for halving-doubling."""
    return next(nbytes for ranks, nbytes in DOUBLING if size < ranks)


class RecordingLink:
    """The `mpicomp.allreduce.interfaces.Link` of the rank at ``place``.

    MPI's own all-reduce, whose schedule cannot be seen, is stood in for by the textbook's: recursive doubling of short
    vectors, halving-doubling of others. ``peers`` gives the number on the tape of a rank of this link.
    """

    reproducible = takes_devices = False
    threads = 1  # the machine's rates are those of a rank's threads

    def __init__(self, tape: Tape, place: Place, ops: GhostOps, peers: Callable[[int], int] = lambda rank: rank
                 ) -> None:
        self.tape, self.place, self.ops, self._peers = tape, place, ops, peers
        self.rank, self.size, self.slow = place.rank, place.size, place.slow()
        self.nodes, self.ranks_per_node = place.nodes, min(place.size, place.ranks_per_node)
        self.one_node, self.owners = place.nodes == 1, place.fewest
        table = built_in(self.nodes)
        self.rows = {device: table.row(self.ranks_per_node, self.nodes, device) for device in ("cpu", "gpu")}
        self.node = RecordingNode(self)
        self.in_flight: deque[list[Request | None]] = deque()  # messages that `RecordingComm.start_messages` started

    @cached_property
    def across(self) -> RecordingLink | None:
        """The ranks of the other nodes that have this one's place on theirs; None if some node has no such place."""
        per_node = self.place.ranks_per_node
        local = self.rank % per_node
        if local >= self.owners:
            return None
        one_per_node = Place(self.rank // per_node, self.nodes, 1, self.place.bandwidth / self.owners)
        return RecordingLink(self.tape, one_per_node, self.ops, lambda node: node * per_node + local)

    @property
    def ranks_by_node(self) -> list[list[int]]:
        per_node = self.ranks_per_node
        return [list(range(first, min(self.size, first + per_node))) for first in range(0, self.size, per_node)]

    def isend(self, array: Array, dest: int) -> Request | None:
        return (True, self.tape.send(self._peers(dest), array.nbytes), 0) if array.size else None

    def irecv(self, array: Array, source: int) -> Request | None:
        peer = self._peers(source)
        return (False, self.tape.expect(peer), peer) if array.size else None

    def wait(self, request: object) -> None:
        if not isinstance(request, tuple):
            return
        sends, number, peer = request
        if sends:
            self.tape.sent(number)
        else:
            self.tape.received(peer, number)

    def uncount(self, nbytes: int) -> None:
        """Do nothing: the tape counts what is sent."""

    def sendrecv(self, outgoing: Array, dest: int, incoming: Array, source: int) -> None:
        received = self.irecv(incoming, source)
        sent = self.isend(outgoing, dest)
        self.wait(received)
        self.wait(sent)

    def meanwhile(self, work: Iterator[None]) -> AbstractContextManager[None]:
        return self.tape.meanwhile(work)

    def native_allreduce(self, work: Array, op: str, source: Array | None = None) -> None:
        with self.tape.inside_mpi():
            if self.size & (self.size - 1) or work.nbytes >= doubling_bytes(self.size):
                link = copy(self)
                link.slow = False  # MPI cuts nothing for it
                halving_doubling.allreduce(link, work, "sum", as_ops(self.ops), cast(Scratch, self.scratch(work.dtype)))
                return
            mask = 1
            while mask < self.size:
                self.sendrecv(work, self.rank ^ mask, work, self.rank ^ mask)
                self.ops.add(work, work)
                mask <<= 1

    def scratch(self, like: np.dtype) -> Callable[..., Ghost]:
        return lambda n, dtype=like, slot="": Ghost(self.ops, n, dtype)


class RecordingNode:
    """All-reduce in the memory of a node: copies, additions and waiting for each other."""

    problem = None

    def __init__(self, link: RecordingLink) -> None:
        self._link = link
        self.rank, self.size = link.place.local

    def run(self, verb: str, send: Array, receive: Array, op: str, kind: str, stream: bool = False,
            factor: float = 1.0) -> None:
        """Every rank copies in; adds its slice of all, and all ranks' slices are copied out, as the verb asks.

        A factor is multiplied by while sums are in registers: that costs nothing.
        """
        work, tape, n = self._link.ops.work, self._link.tape, receive.size
        if verb != "all_gather":
            work("copy", n)
            tape.bytes_shared += receive.nbytes
            tape.sync()
            if self.rank < self._link.owners:
                work("add", n * (self.size - 1) // self._link.owners)
        if verb != "reduce_scatter":
            tape.bytes_shared += receive[self.slice(receive)].nbytes
            tape.sync()
            work("copy", n)

    def slice(self, array: Array) -> slice:
        return slice_of(array.size, array.itemsize, self._link.owners, self.rank)
