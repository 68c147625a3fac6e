"""Events of one rank in their order: messages, waits and work, as numbers."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from .ghost_ops import KERNELS

SEND, SENT, RECEIVED, WORK, POOL, DRAIN, SYNC = range(7)
XOR = 8  # added to the kind of a message whose peer is counted as what differs in the bits (see ``program``)
PHASE = 1 << 20  # messages between two ranks in one collective, at most
ALL, ACROSS = 0, 1  # ranks of a collective: all, or those that keep the same slice on their nodes
COLUMNS = 4  # kind, who or which kernel, which message, how much
NUMBER = {name: number for number, name in enumerate(KERNELS)}


class Tape:
    """The events of one rank.

    SEND      peer, number among the messages to that peer, bytes
    SENT      -, number among all messages sent, idle: wait until that message has left
    RECEIVED  peer, number among the messages from that peer, idle: wait until it is here
    WORK      kernel, -, elements
    POOL      kernel, -, elements: to be done while waiting
    DRAIN     what is left of the pool
    SYNC      wait for the ranks of this node

    A wait is idle (1) within MPI's own collectives, from which a rank does not return to its pool; else 0.
    Messages between two ranks are numbered anew in every collective, with which they begin a ``phase``.
    Work between two other events has no order: it is kept sorted, so that ranks that do the same are seen to.
    ``bytes_shared`` are those that this rank wrote into the memory of its node for others to read.
    """

    def __init__(self) -> None:
        self.events = array("q")
        self.bytes_sent = self.bytes_shared = self.messages = self._first = 0
        self._phases = [0, 0]
        self._to: dict[int, int] = defaultdict(int)
        self._from: dict[int, int] = defaultdict(int)
        self._work, self._idle, self._cut = WORK, 0, 0

    def cut(self) -> int:
        """Keep later work behind the events so far; return their number."""
        self._cut = len(self.events)
        return self._cut

    def phase(self, among: int) -> None:
        """A collective begins: of ALL ranks, or of those ACROSS nodes, of which others may have had fewer."""
        self._phases[among] += 1
        self._first = PHASE * (2 * self._phases[among] + among)
        self._to.clear()
        self._from.clear()

    def send(self, peer: int, nbytes: int) -> int:
        """The message's number among all of this rank."""
        self.events.extend((SEND, peer, self._first + self._to[peer], nbytes))
        self._to[peer] += 1
        self.bytes_sent += nbytes
        self.messages += 1
        return self.messages - 1

    def sent(self, number: int) -> None:
        self.events.extend((SENT, 0, number, self._idle))

    def expect(self, peer: int) -> int:
        """A receive is posted; the message's number among those of this peer."""
        self._from[peer] += 1
        return self._first + self._from[peer] - 1

    def received(self, peer: int, number: int) -> None:
        self.events.extend((RECEIVED, peer, number, self._idle))

    def work(self, kernel: str, elements: int) -> None:
        events, number = self.events, NUMBER[kernel]
        if elements == 0:
            return
        at = len(events)
        while self._work == WORK and at > self._cut and events[at - 4] == WORK and events[at - 3] > number:
            at -= 4
        if at > self._cut and events[at - 4] == self._work and events[at - 3] == number:
            events[at - 1] += elements
        else:
            events[at:at] = array("q", (self._work, number, 0, elements))

    def sync(self) -> None:
        if self._work == WORK:  # what ranks do in the gaps is not held up by each other's
            self.events.extend((SYNC, 0, 0, 0))

    @contextmanager
    def meanwhile(self, work: Iterator[None]) -> Iterator[None]:
        """Within the block, fill waits with ``work``; do the rest of it at the end."""
        self._work = POOL
        for _ in work:
            pass
        self._work = WORK
        yield
        self.events.extend((DRAIN, 0, 0, 0))

    @contextmanager
    def inside_mpi(self) -> Iterator[None]:
        """Within the block nothing fills waits."""
        self._idle = 1
        yield
        self._idle = 0

    def table(self) -> np.ndarray:
        """The events, one a row of COLUMNS int64."""
        return np.frombuffer(self.events, np.int64).reshape(-1, COLUMNS)
