"""Two-hop exchange of coded values: owners of pieces add the codes of all ranks.

Schedule      Every piece of the result has an owner. First hop: the ranks that contribute to a piece encode it and send
              the stream to the owner, which adds the streams of all of them in rank order. Second hop: the owner sends
              the stream of the sum to all ranks, which decode it. Pieces travel in segments; a segment is in its second
              hop while the next one is in its first.
              Between nodes of several ranks one stream per node travels: the owner's place on its node has a rank on
              each other node, the relay, which adds the streams of its neighbours and passes the sum on, and
              passes the total on to its neighbours. Values of escaped blocks must be added in rank order, so relays
              whose neighbours have one in a segment say so, and all relays of that place send its streams unadded.
Cost          2 steps of p-1 messages per segment; an all-reduce of n bytes at compression ratio c sends 2(p-1)/p n/c
              per rank, encodes n, adds n and decodes n. Between m nodes a node sends and receives 2(m-1)/m n/c.
Restrictions  p-1 messages at a time, so for tens of ranks. Segments are whole blocks of the code, so that the bits do
              not depend on their length; nor on the schedule or on nodes, since the owner adds in rank order what
              must be added in order.
Reference     Huang et al., "hZCCL: Accelerating collective communication with co-designed homomorphic compression",
              SC 2024 (sums of streams); EQuARX (the two hops).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .._util.partition import chunk_count, partition
from ..types import Array
from .interfaces import Link, Scratch
from .segments import wait_all

SEGMENT_BYTES = 256 << 10  # of values, for one thread: a few eager messages' worth of streams
BUFFERED_BYTES = 2 << 20  # of values, for one thread, in the segments of all pieces
LONGEST = 8  # times as long for several threads, twice for each: shorter segments gain little from them
LEAST_SEGMENTS = 4  # per piece, so that its hops overlap
HEAD = 8  # bytes before a stream: its length
UNADDED = -1  # as a length: the streams of the node follow one by one


class StreamLink(Link, Protocol):
    """Link whose messages may be shorter than the receive buffers."""

    threads: int  # that every rank has

    @property
    def ranks_by_node(self) -> list[list[int]]:
        """Ascending ranks of every node; the first use is collective."""

    def uncount(self, nbytes: int) -> None:
        """Subtract bytes of receive buffers that messages did not fill."""


class Codes(Protocol):
    """Coder of one exchange: its code and the parameters of that."""

    @property
    def block(self) -> int:
        """Elements per block: streams of whole blocks depend on their values alone."""

    def capacity(self, n: int) -> int:
        """Return the largest number of bytes of a stream of ``n`` elements."""

    def encode(self, values: Array, out: Array) -> int:
        """Write the stream of ``values`` to the front of ``out``; return its bytes."""

    def sum(self, streams: list[Array], n: int, out: Array) -> int:
        """Write the stream of the sum of ``streams`` of ``n`` elements; return its bytes."""

    def decode(self, stream: Array, out: Array) -> None:
        """Write the result that a stream of a sum stands for to ``out``."""

    def in_order(self, stream: Array, n: int) -> int:
        """Return the number of blocks in a stream of ``n`` elements whose values must be added in rank order."""


@dataclass
class Pieces:
    """The pieces of a vector, one per owner, where they begin and which ranks contribute to them."""

    counts: list[int]
    senders: Sequence[Sequence[int]]  # by owner, ascending
    source: Array | None  # what this rank encodes; None if it contributes to no piece
    source_at: list[int]  # where pieces begin in ``source``
    target: Array
    target_at: list[int]  # where pieces begin in ``target``
    shared: bool  # all ranks get all pieces; else the owner its own
    nodes: Sequence[Sequence[int]] = ()  # ascending ranks of every node, if all contribute to all pieces and get them


@dataclass
class Sizes:
    """Bytes of the streams that a rank encoded and decoded, and of the values in them."""

    values: int = 0
    streams: int = 0


def block_partition(n: int, size: int, block: int) -> tuple[list[int], list[int]]:
    """Cut ``n`` elements into ``size`` pieces of whole blocks; return counts and displacements."""
    _, displs = partition(chunk_count(n, block), size)
    begins = [min(n, displ * block) for displ in displs]
    return [end - begin for begin, end in zip(begins, [*begins[1:], n], strict=True)], begins


def alone(size: int) -> list[list[int]]:
    """Return the nodes of ranks none of which has neighbours."""
    return [[rank] for rank in range(size)]


def owned_by_places(n: int, nodes: Sequence[Sequence[int]], block: int) -> tuple[list[int], list[int]]:
    """Cut ``n`` elements into pieces of whole blocks, one per rank whose place every node has.

    Returns counts and displacements by rank.
    """
    places = min(map(len, nodes))
    owners = sorted(rank for node in nodes for rank in node[:places])
    counts, begins = [0] * sum(map(len, nodes)), [n] * sum(map(len, nodes))
    for owner, count, begin in zip(owners, *block_partition(n, len(owners), block), strict=True):
        counts[owner], begins[owner] = count, begin
    return counts, begins


def all_reduce_pieces(link: StreamLink, source: Array, target: Array, block: int, by_nodes: bool = True) -> Pieces:
    """Return the pieces of an all-reduce; ``by_nodes`` such that one stream per node travels between nodes."""
    nodes, everyone = alone(link.size), range(link.size)
    if by_nodes and not link.one_node and link.ranks_per_node > 1:
        nodes = link.ranks_by_node
    counts, begins = owned_by_places(target.size, nodes, block)
    return Pieces(counts, [everyone] * link.size, source, begins, target, begins, True, nodes)


class Streams(ABC):
    """Streams of one exchange in segments of at most ``most`` elements; by default so many that they fit the caches.

    A message is a stream behind its length.
    """

    def __init__(self, link: StreamLink, pieces: Pieces, codes: Codes, scratch: Scratch, most: int | None = None):
        self.link, self.pieces, self.codes, self.rank = link, pieces, codes, link.rank
        if most is None:
            times = min(2 * link.threads, LONGEST) if link.threads > 1 else 1
            most = times * min(SEGMENT_BYTES, BUFFERED_BYTES // link.size) // pieces.target.itemsize
        self.length = segment_length(max(pieces.counts), most, codes.block)
        self.segments = chunk_count(max(pieces.counts), self.length)
        self.room = HEAD * chunk_count(HEAD + codes.capacity(self.length), HEAD)  # heads stay aligned
        self.scratch, self.sizes = scratch, Sizes()

    @abstractmethod
    def run(self) -> Sizes:
        """Run the exchange (collective)."""

    def _size(self, owner: int, index: int) -> int:
        """Return the elements of a segment of an owner's piece."""
        return max(0, min(self.length, self.pieces.counts[owner] - index * self.length))

    def _encoded(self, owner: int, index: int, buffer: Array) -> Array:
        """Encode this rank's values of a segment into ``buffer``; return its message."""
        pieces, n = self.pieces, self._size(owner, index)
        assert pieces.source is not None, "a rank that contributes has a source"
        begin = pieces.source_at[owner] + index * self.length
        values = pieces.source[begin : begin + n]
        nbytes = self.codes.encode(values, buffer[HEAD:])
        self._count(values.nbytes, nbytes)
        return with_head(buffer, nbytes)

    def _sum(self, messages: list[Array], owner: int, index: int, buffer: Array) -> Array:
        """Add the streams of messages into ``buffer``; return its message."""
        streams = [message[HEAD:] for message in messages]
        if len(streams) == 1:
            nbytes = streams[0].size
            buffer[HEAD : HEAD + nbytes] = streams[0]
        else:
            nbytes = self.codes.sum(streams, self._size(owner, index), buffer[HEAD:])
        return with_head(buffer, nbytes)

    def _decode(self, message: Array, owner: int, index: int) -> None:
        n, begin = self._size(owner, index), self.pieces.target_at[owner] + index * self.length
        out = self.pieces.target[begin : begin + n]
        self.codes.decode(message[HEAD:], out)
        self._count(out.nbytes, message.size - HEAD)

    def _count(self, values: int, stream: int) -> None:
        self.sizes.values += values
        self.sizes.streams += stream


class TwoHops(Streams):
    """One exchange by two hops.

    ``waiting`` has receives by use, segment and ranks, ``sent`` sends by segment.
    """

    def __init__(self, link: StreamLink, pieces: Pieces, codes: Codes, scratch: Scratch, most: int | None = None):
        super().__init__(link, pieces, codes, scratch, most)
        self.waiting: dict[tuple[str | int, ...], object] = {}
        self.sent: dict[int, list[object]] = {}
        self.unadded: set[int] = set()  # segments whose streams travel one by one
        nodes = pieces.nodes or alone(link.size)
        owners = min(map(len, nodes))
        self.on_nodes = len(nodes) < link.size
        self.stages = [self._send_first, self._add, self._finish]
        if self.on_nodes:
            self.stages = [self._give, self._send_first, self._add, self._pass_on, self._finish]
        self.node_of = {rank: node for node in nodes for rank in node}
        self.node = self.node_of[self.rank]
        self.neighbours = [rank for rank in self.node if rank != self.rank]
        self.relays = {owner: self.node[place] for node in nodes for place, owner in enumerate(node[:owners])}
        ring = [(self.rank + shift) % link.size for shift in range(link.size)]  # no owner is everyone's first
        self.others = [rank for rank in ring[1:] if self.relays.get(rank) == self.rank]  # relays at this rank's place
        self.owners = [rank for rank in ring if pieces.counts[rank]]

    def run(self) -> Sizes:
        for step in range(self.segments + len(self.stages) - 1 if self.segments else 0):
            for lag, stage in enumerate(self.stages):
                if 0 <= step - lag < self.segments:
                    stage(step - lag)
        return self.sizes

    # -- stages: all ranks run them in this order, and a rank sends to another in the order in which that one receives

    def _give(self, index: int) -> None:
        """Send the streams of a segment to the relays on this node."""
        for owner in self._relayed(index):
            for neighbour in self.neighbours:
                self._expect(neighbour, "given", index, owner, neighbour)
        for owner, relay in self.relays.items():
            if relay != self.rank and self._size(owner, index):
                self._send(relay, self._encode(owner, index), index)

    def _send_first(self, index: int) -> None:
        """Start the first hop of a segment of every piece."""
        for peer in self._senders(index):
            self._expect(peer, "in", index, peer)
        if self.on_nodes:
            self._gather(index)
        for owner in [*self.others, self.rank]:
            if self._sends(self.rank, owner, index):
                message = self._first(owner, index) if self.on_nodes else self._encode(owner, index)
                if owner != self.rank:
                    self._send(owner, message, index)

    def _add(self, index: int) -> None:
        """Add the streams of this rank's piece, and start the second hop of all pieces."""
        messages = {peer: self._received("in", index, peer) for peer in self._senders(index)}
        if self._sends(self.rank, self.rank, index):
            messages[self.rank] = self._message("node" if self.on_nodes else "out", index, self.rank)
        if index in self.unadded or any(length_of(message) == UNADDED for message in messages.values()):
            messages = self._swap_unadded(index)
        shared = self.pieces.shared
        for peer in self.others if shared else ():
            if self._size(peer, index):
                self._expect(peer, "sum in", index, peer)
        if self._size(self.rank, index):
            total = self._sum([messages[rank] for rank in sorted(messages)], self.rank, index,
                              self._buffer("sum", index))
            for peer in self.others if shared else ():
                self._send(peer, total, index)

    def _pass_on(self, index: int) -> None:
        """Send the sums of a segment from the relays to the other ranks of this node."""
        for owner, relay in self.relays.items():
            if relay != self.rank and self._size(owner, index):
                self._expect(relay, "sum in", index, owner)
        for owner in self._relayed(index):
            for neighbour in self.neighbours:
                self._send(neighbour, self._total(owner, index), index)

    def _finish(self, index: int) -> None:
        """Decode a segment of every piece, and end its sends: the buffers are used again."""
        for owner in self.owners if self.pieces.shared else [self.rank]:
            if self._size(owner, index):
                self._decode(self._total(owner, index), owner, index)
        wait_all(self.link, self.sent.pop(index, ()))
        self.unadded.discard(index)

    # -- relays

    def _relayed(self, index: int) -> list[int]:
        """Return the owners of a segment that this rank relays for, itself among them."""
        return [owner for owner, relay in self.relays.items() if relay == self.rank and self._size(owner, index)]

    def _gather(self, index: int) -> None:
        """Complete the streams of this node in a segment; note whether blocks of them have escaped."""
        for owner in self._relayed(index):
            given = [self._encode(owner, index)]
            given += [self._received("given", index, owner, neighbour) for neighbour in self.neighbours]
            if any(self.codes.in_order(message[HEAD:], self._size(owner, index)) for message in given):
                self.unadded.add(index)

    def _given(self, owner: int, index: int) -> dict[int, Array]:
        """Return the messages of this node for an owner."""
        if not self._size(owner, index):
            return {}
        return {rank: self._message("out", index, owner) if rank == self.rank
                else self._message("given", index, owner, rank) for rank in self.node}

    def _first(self, owner: int, index: int) -> Array:
        """Return the message of this node to an owner. An empty one, too: relays wait for what it says."""
        buffer = self._buffer("node", index, owner)
        if index in self.unadded:
            return with_head(buffer, UNADDED)
        given = self._given(owner, index)
        return self._sum(list(given.values()), owner, index, buffer) if given else with_head(buffer, 0)

    def _swap_unadded(self, index: int) -> dict[int, Array]:
        """Exchange the streams of a segment with the other relays; return those of all ranks for this rank's piece."""
        senders = [(peer, rank) for peer in self.others for rank in self.node_of[peer] if self._size(self.rank, index)]
        for peer, rank in senders:
            self._expect(peer, "unadded", index, rank)
        for peer in self.others:
            for message in self._given(peer, index).values():
                self._send(peer, message, index)
        return self._given(self.rank, index) | {rank: self._received("unadded", index, rank) for _, rank in senders}

    # -- messages

    def _sends(self, rank: int, owner: int, index: int) -> bool:
        """Return True if a rank takes part in the first hop to an owner."""
        if self.on_nodes:
            return owner in self.relays and self.relays[owner] == self.rank
        return rank in self.pieces.senders[owner] and self._size(owner, index) > 0

    def _senders(self, index: int) -> list[int]:
        """Return the other ranks that send to this one in the first hop."""
        return [peer for peer in self.others if self._sends(peer, self.rank, index)]

    def _encode(self, owner: int, index: int) -> Array:
        """Encode this rank's values of a segment."""
        return self._encoded(owner, index, self._buffer("out", index, owner))

    def _total(self, owner: int, index: int) -> Array:
        """Return the message of the second hop."""
        if owner == self.rank:
            return self._message("sum", index)
        if ("sum in", index, owner) in self.waiting:
            return self._received("sum in", index, owner)
        return self._message("sum in", index, owner)

    def _expect(self, source: int, use: str, index: int, *ranks: int) -> None:
        self.waiting[(use, index, *ranks)] = self.link.irecv(self._buffer(use, index, *ranks), source)

    def _received(self, use: str, index: int, *ranks: int) -> Array:
        """Wait for a message of another rank."""
        self.link.wait(self.waiting.pop((use, index, *ranks)))
        message = self._message(use, index, *ranks)
        self.link.uncount(self.room - message.size)
        return message

    def _send(self, dest: int, message: Array, index: int) -> None:
        self.sent.setdefault(index, []).append(self.link.isend(message, dest))

    def _message(self, use: str, index: int, *ranks: int) -> Array:
        """Return the message in a buffer."""
        return message_in(self._buffer(use, index, *ranks))

    def _buffer(self, use: str, index: int, *ranks: int) -> Array:
        """Return a message buffer: one per use, ranks and segment in flight."""
        return self.scratch(self.room, np.uint8, slot=f"stream {use} {index % len(self.stages)} {ranks}")[: self.room]


def length_of(message: Array) -> int:
    """Return the length of a stream before it."""
    return int(message[:HEAD].view(np.int64)[0])


def message_in(buffer: Array) -> Array:
    """Return the head in a buffer and its stream."""
    return buffer[: HEAD + max(0, length_of(buffer))]


def with_head(buffer: Array, nbytes: int) -> Array:
    """Write the length of a stream before it; return the message."""
    buffer[:HEAD].view(np.int64)[0] = nbytes
    return message_in(buffer)


def segment_length(longest: int, most: int, block: int) -> int:
    """Return the elements of a segment, about ``most``, of pieces of at most ``longest`` elements: whole blocks."""
    blocks = min(most // block, chunk_count(longest, LEAST_SEGMENTS * block))
    return max(1, blocks) * block
