"""Ring exchange of coded values: streams are added on their way around, then the finished ones are forwarded.

Schedule      Reduce-scatter, then all-gather, around one ring of the ranks in the order of the nodes. In step s a rank
              sends a stream of the piece of the rank s+1 places before it: first the code of its own values; in the
              steps up to p-1 the sum of the stream that it received and its own code; then the finished stream that
              it received. Pieces travel in segments, and the segments of all steps form one sequence: while one is
              added, the next ones are on the wire. A reduce-scatter ends after p-1 steps.
              Values of escaped blocks must be added in rank order, so a segment in which a rank has one travels as
              a length alone; the ranks exchange these segments by two hops at the end.
Cost          2(p-1) steps of one message per segment; an all-reduce of n bytes at compression ratio c sends
              2(p-1)/p n/c per rank, encodes n, adds 2(p-1)/p n and decodes n. A node sends as much as one rank.
Restrictions  All ranks contribute to all pieces. For long vectors: latency grows with p. Only neighbours exchange
              messages, so it suits networks that are slow between groups of nodes. The bits are those of two hops.
Reference     Huang et al., "hZCCL: Accelerating collective communication with co-designed homomorphic compression",
              SC 2024.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ..types import Array
from .interfaces import Scratch
from .two_hops import (
    HEAD,
    UNADDED,
    Codes,
    Pieces,
    Sizes,
    StreamLink,
    Streams,
    TwoHops,
    length_of,
    message_in,
    with_head,
)

WINDOW = 8  # segments in flight in each direction


class Ring(Streams):
    """One exchange around the ring. Messages are numbered by step and segment; number n leads to n + segments."""

    def __init__(self, link: StreamLink, pieces: Pieces, codes: Codes, scratch: Scratch, most: int | None = None):
        super().__init__(link, pieces, codes, scratch, most)
        self.order = [rank for node in link.ranks_by_node for rank in node]
        self.place = self.order.index(self.rank)
        self.left, self.right = self._at(-1), self._at(1)
        self.unadded = np.zeros((self.segments, link.size), np.int32)

    def run(self) -> Sizes:
        if self.link.size == 1:
            return TwoHops(self.link, self.pieces, self.codes, self.scratch, self.length).run()
        steps = (2 if self.pieces.shared else 1) * (self.link.size - 1)
        count, ahead = steps * self.segments, min(WINDOW, self.segments)
        window = min(WINDOW, count)
        received = deque(self._receive(number) for number in range(window))
        sent = deque(self._send(number) for number in range(ahead))
        for number in range(count):
            self.link.wait(sent.popleft())
            self.link.wait(received.popleft())
            self._take(number)
            if number + ahead < count:
                sent.append(self._send(number + ahead))
            if number + window < count:
                received.append(self._receive(number + window))
        self._exchange_unadded()
        return self.sizes

    def _at(self, places: int) -> int:
        """Return the rank so many places further on the ring."""
        return self.order[(self.place + places) % len(self.order)]

    def _segment(self, number: int) -> tuple[int, int, int]:
        """Return step, owner and segment of the message that this rank sends with this number."""
        step, index = divmod(number, self.segments)
        return step, self._at(-step - 1), index

    def _receive(self, number: int) -> object:
        _, owner, index = self._segment(number + self.segments)
        buffer = self._buffer(f"in {number % WINDOW}")
        return self.link.irecv(buffer if self._size(owner, index) else buffer[:0], self.left)

    def _send(self, number: int) -> object:
        step, owner, index = self._segment(number)
        buffer = self._buffer(f"out {index}")
        if not self._size(owner, index):
            return self.link.isend(buffer[:0], self.right)
        if step == 0:
            self._combine([], owner, index)
        return self.link.isend(message_in(buffer), self.right)

    def _take(self, number: int) -> None:
        """Make the message that a received one leads to; decode it if it is finished."""
        step, owner, index = self._segment(number + self.segments)
        if not self._size(owner, index):
            return
        message = message_in(self._buffer(f"in {number % WINDOW}"))
        self.link.uncount(self.room - message.size)
        self._combine([message], owner, index, adds=step < self.link.size)
        if step >= self.link.size - 1 and not self.unadded[index, owner]:
            self._decode(message_in(self._buffer(f"out {index}")), owner, index)

    def _combine(self, messages: list[Array], owner: int, index: int, adds: bool = True) -> None:
        """Write the sum of messages, and of the own stream if this rank ``adds`` it, to the buffer of a segment."""
        buffer, unadded = self._buffer(f"out {index}"), any(length_of(message) == UNADDED for message in messages)
        if adds and not unadded:
            own = self._encoded(owner, index, self._buffer("own"))
            unadded = self.codes.in_order(own[HEAD:], self._size(owner, index)) > 0
            messages = [*messages, own]
        if unadded:
            self.unadded[index, owner] = 1
            with_head(buffer, UNADDED)
        else:
            self._sum(messages, owner, index, buffer)

    def _exchange_unadded(self) -> None:
        """Exchange the segments that did not travel, by two hops."""
        pieces = self.pieces
        if not pieces.shared:  # only the owner knows
            self.link.native_allreduce(self.unadded.reshape(-1), "max")
        for index in np.flatnonzero(self.unadded.any(axis=1)).tolist():
            counts = [self._size(owner, index) if self.unadded[index, owner] else 0 for owner in range(self.link.size)]
            at, to = ([begin + index * self.length for begin in begins] for begins in (pieces.source_at,
                                                                                      pieces.target_at))
            part = Pieces(counts, pieces.senders, pieces.source, at, pieces.target, to, pieces.shared)
            more = TwoHops(self.link, part, self.codes, self.scratch, self.length).run()
            self._count(more.values, more.streams)

    def _buffer(self, slot: str) -> Array:
        return self.scratch(self.room, np.uint8, slot=f"ring {slot}")[: self.room]
