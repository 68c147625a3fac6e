"""Two-hop exchange of coded values: owners of pieces add the codes of all ranks.

Schedule      Every piece of the result has an owner. First hop: the ranks that contribute to a piece encode it and send
              the stream to the owner, which adds the streams of all of them in rank order. Second hop: the owner sends
              the stream of the sum to all ranks, which decode it. Pieces travel in segments; a segment is in its second
              hop while the next one is in its first.
Cost          2 steps of p-1 messages per segment; an all-reduce of n bytes at compression ratio c sends 2(p-1)/p n/c
              per rank, encodes n, adds n and decodes n.
Restrictions  p-1 messages at a time, so for tens of ranks. Segments are whole blocks of the code, so that the bits do
              not depend on their length; nor on the schedule, since the owner adds in rank order.
Reference     Huang et al., "hZCCL: Accelerating collective communication with co-designed homomorphic compression",
              SC 2024 (sums of streams); EQuARX (the two hops).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .._util.partition import chunk_count, partition
from ..types import Array
from .interfaces import Link, Scratch

SEGMENT_BYTES = 256 << 10  # of values, for one thread: a few eager messages' worth of streams
BUFFERED_BYTES = 2 << 20  # of values, for one thread, in the segments of all pieces
LONGEST = 8  # times as long for several threads, twice for each: shorter segments gain little from them
LEAST_SEGMENTS = 4  # per piece, so that its hops overlap
IN_FLIGHT = 3  # segments: one in each hop, one that is decoded
HEAD = 8  # bytes before a stream: its length


class StreamLink(Link, Protocol):
    """Link whose messages may be shorter than the receive buffers."""

    threads: int  # that every rank has

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


@dataclass
class Pieces:
    """The pieces of a vector, one per owner, where they begin and which ranks contribute to them."""

    counts: list[int]
    senders: list[Sequence[int]]  # by owner, ascending
    source: Array | None  # what this rank encodes; None if it contributes to no piece
    source_at: list[int]  # where pieces begin in ``source``
    target: Array
    target_at: list[int]  # where pieces begin in ``target``
    shared: bool  # all ranks get all pieces; else the owner its own


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


class TwoHops:
    """One exchange."""

    def __init__(self, link: StreamLink, pieces: Pieces, codes: Codes, scratch: Scratch):
        self.link, self.pieces, self.codes = link, pieces, codes
        self.peers = [(link.rank + shift) % link.size for shift in range(1, link.size)]
        self.length = segment_length(max(pieces.counts), pieces.target.itemsize, link.size, codes.block, link.threads)
        self.room = HEAD * chunk_count(HEAD + codes.capacity(self.length), HEAD)  # heads stay aligned
        self.scratch, self.sizes = scratch, Sizes()
        self.waiting: dict[tuple[str, int, int], object] = {}  # requests by hop, segment and peer

    def run(self) -> Sizes:
        segments = chunk_count(max(self.pieces.counts), self.length)
        for step in range(segments + 2 if segments else 0):
            if step < segments:
                self._send_first(step)
            if 1 <= step <= segments:
                self._add(step - 1)
            if step >= 2:
                self._finish(step - 2)
        return self.sizes

    def _size(self, owner: int, index: int) -> int:
        """Return the elements of a segment of an owner's piece."""
        return max(0, min(self.length, self.pieces.counts[owner] - index * self.length))

    def _part(self, vector: Array, begins: list[int], owner: int, index: int) -> Array:
        begin = begins[owner] + index * self.length
        return vector[begin : begin + self._size(owner, index)]

    def _buffer(self, use: str, index: int, rank: int) -> Array:
        """Return a message buffer: one per rank and segment in flight."""
        number = (index % IN_FLIGHT) * self.link.size + rank
        whole = self.scratch(IN_FLIGHT * self.link.size * self.room, np.uint8, slot=f"stream {use}")
        return whole[number * self.room : (number + 1) * self.room]

    def _send_first(self, index: int) -> None:
        """Start the first hop of a segment of every piece."""
        link, pieces, rank = self.link, self.pieces, self.link.rank
        if self._size(rank, index):
            for sender in pieces.senders[rank]:
                if sender != rank:
                    self.waiting["in", index, sender] = link.irecv(self._buffer("in", index, sender), sender)
        for owner in [*self.peers, rank]:
            if rank not in pieces.senders[owner] or not self._size(owner, index):
                continue
            assert pieces.source is not None, "a rank that contributes has a source"
            values = self._part(pieces.source, pieces.source_at, owner, index)
            buffer = self._buffer("out", index, owner)
            nbytes = self.codes.encode(values, buffer[HEAD:])
            self._count(values.nbytes, nbytes)
            message = with_head(buffer, nbytes)
            if owner != rank:
                self.waiting["out", index, owner] = link.isend(message, owner)

    def _add(self, index: int) -> None:
        """Add the streams of this rank's piece, and start the second hop of all pieces."""
        link, pieces, rank = self.link, self.pieces, self.link.rank
        if pieces.shared:
            for peer in self.peers:
                if self._size(peer, index):
                    self.waiting["sum in", index, peer] = link.irecv(self._buffer("sum in", index, peer), peer)
        n = self._size(rank, index)
        if not n:
            return
        streams = [self._stream("out", index, rank) if sender == rank else self._received("in", index, sender)
                   for sender in pieces.senders[rank]]
        total = self._buffer("sum", index, 0)
        if len(streams) == 1:
            nbytes = streams[0].size
            total[HEAD : HEAD + nbytes] = streams[0]
        else:
            nbytes = self.codes.sum(streams, n, total[HEAD:])
        message = with_head(total, nbytes)
        for peer in self.peers if pieces.shared else ():
            self.waiting["sum", index, peer] = link.isend(message, peer)

    def _finish(self, index: int) -> None:
        """Decode a segment of every piece, and end its sends: the buffers are used again."""
        rank = self.link.rank
        for owner in [rank, *self.peers] if self.pieces.shared else [rank]:
            if self._size(owner, index):
                stream = self._stream("sum", index, 0) if owner == rank else self._received("sum in", index, owner)
                self._decode(stream, self._part(self.pieces.target, self.pieces.target_at, owner, index))
        for use in ("out", "sum"):
            for peer in self.peers:
                self.link.wait(self.waiting.pop((use, index, peer), None))

    def _received(self, use: str, index: int, peer: int) -> Array:
        """Wait for a stream of another rank."""
        self.link.wait(self.waiting.pop((use, index, peer)))
        stream = self._stream(use, index, peer)
        self.link.uncount(self.room - HEAD - stream.size)
        return stream

    def _stream(self, use: str, index: int, rank: int) -> Array:
        """Return the stream in a message buffer."""
        buffer = self._buffer(use, index, rank)
        return buffer[HEAD : HEAD + int(buffer[:HEAD].view(np.int64)[0])]

    def _decode(self, stream: Array, out: Array) -> None:
        self.codes.decode(stream, out)
        self._count(out.nbytes, stream.size)

    def _count(self, values: int, stream: int) -> None:
        self.sizes.values += values
        self.sizes.streams += stream


def with_head(buffer: Array, nbytes: int) -> Array:
    """Write the length of a stream before it; return the message."""
    buffer[:HEAD].view(np.int64)[0] = nbytes
    return buffer[: HEAD + nbytes]


def segment_length(longest: int, itemsize: int, size: int, block: int, threads: int) -> int:
    """Return the elements of a segment of pieces of at most ``longest`` elements: whole blocks."""
    times = min(2 * threads, LONGEST) if threads > 1 else 1
    most = times * min(SEGMENT_BYTES, BUFFERED_BYTES // size) // itemsize
    blocks = min(most // block, chunk_count(longest, LEAST_SEGMENTS * block))
    return max(1, blocks) * block
