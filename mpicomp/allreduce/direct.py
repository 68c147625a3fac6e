"""Direct all-reduce: every rank sums its own block of all vectors, in rank order; half precision in float32.

Schedule      Each rank sends piece b of its vector to rank b, which adds the p pieces of its own block in the order of
              the ranks (a half-precision piece is widened to float32, and the sum is rounded once at the end).
              Every rank sends its finished block to all others. Blocks travel in segments, and a finished one goes
              out while pieces of the next ones come in.
Cost          2 steps of p-1 messages per segment; 2(p-1)/p n bytes sent per rank; (p-1)/p n additions.
Restrictions  p-1 messages at a time, so for tens of ranks, not thousands; scratch of 2 p segments, on a slow
              network of up to 32 short ones if these are more.
              ``kind`` is "float16" or "bfloat16" if a uint16 vector holds the bits of half precision.
Reference     the "pairwise" reduce-scatter of Thakur, Rabenseifner, Gropp 2005, all partners at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from .._util.partition import chunk_count, partition
from ..types import Array
from . import combiner
from .interfaces import Arithmetic, Link, Scratch
from .segments import ahead, segments, wait_all

SEGMENT_BYTES = 1 << 19
WINDOW = 2  # segments of each rank in flight: one is received while the other is added

Segments = Callable[[int, int], Array]  # of a vector, by block and index


def allreduce(
    link: Link, work: Array, op: str, ops: Arithmetic, scratch: Scratch, factor: float = 1.0,
    source: Array | None = None, kind: str | None = None,
) -> None:
    if link.size == 1 or work.size == 0:
        return
    blocks, summation = Blocks(link, work.size, work), Summation(op, ops, scratch, kind, factor)
    result = blocks.of(work)
    blocks.combine(summation, scratch, result if source is None else blocks.of(source), result, shares=True)


def reduce_scatter(link: Link, source: Array, out: Array, op: str, ops: Arithmetic, scratch: Scratch,
                   kind: str | None = None) -> None:
    """Write this rank's block of the reduction of ``source`` into ``out``; all blocks have one length."""
    blocks = Blocks(link, source.size, source)
    blocks.combine(Summation(op, ops, scratch, kind, 1.0), scratch, blocks.of(source), blocks.own(out))


class Blocks:
    """The block of a vector of ``n`` elements that each rank combines, in segments, and its way there and back.

    What travels has the dtype of ``like`` and is on its device.
    """

    def __init__(self, link: Link, n: int, like: Array) -> None:
        self.link = link
        self.counts, self.displs = partition(n, link.size)
        self.peers = [(link.rank + shift) % link.size for shift in range(1, link.size)]
        longest = self.counts[0]
        nbytes, most = segments(link, like, longest * like.itemsize, (SEGMENT_BYTES, WINDOW))
        self.window = max(WINDOW, most // len(self.peers))  # each of which is sent as many
        self.length = max(1, min(longest, nbytes // like.itemsize))  # elements per segment
        self.indices = range(chunk_count(longest, self.length))  # of a block's segments

    def span(self, block: int, index: int) -> tuple[int, int]:
        """Return the first element of a segment of a block, and the one behind its last."""
        end = self.displs[block] + self.counts[block]
        begin = min(end, self.displs[block] + index * self.length)
        return begin, min(end, begin + self.length)

    def of(self, vector: Array, begin: int = 0) -> Segments:
        """Return the segments of a vector, or of a part of it that starts at ``begin``."""
        def segment(block: int, index: int) -> Array:
            first, last = self.span(block, index)
            return vector[first - begin : last - begin]

        return segment

    def own(self, block: Array) -> Segments:
        """Return the segments of this rank's block."""
        return self.of(block, self.displs[self.link.rank])

    def slots(self, scratch: Scratch, slot: str = "") -> Callable[[int, int, int], Array]:
        """Return room for a segment from, or to, each rank: for as many of a block as are in flight."""
        array, size = scratch(self.window * self.link.size * self.length, slot=slot), self.link.size

        def room(rank: int, block: int, index: int) -> Array:
            at = (index % self.window * size + rank) * self.length
            begin, end = self.span(block, index)
            return array[at : at + end - begin]

        return room

    def combine(self, summation: Summation, scratch: Scratch, source: Segments, result: Segments,
                done: Callable[[Array], None] | None = None, shares: bool = False) -> None:
        """Combine the pieces of this rank's block of ``source``, each asked for once, into ``result``.

        ``done`` is called with every combined segment. ``shares``: it goes to all ranks, while pieces of the next ones
        come in.
        """
        link, rank = self.link, self.link.rank
        slots = self.slots(scratch)

        def start(index: int) -> tuple[list[object], list[object]]:
            received = [link.irecv(slots(peer, rank, index), peer) for peer in reversed(self.peers)]
            return received, [link.isend(source(peer, index), peer) for peer in self.peers]

        shared: deque[list[object]] = deque()
        for index, (received, sent) in ahead(start, self.indices, self.window - 1):
            wait_all(link, received)
            own, total = source(rank, index), result(rank, index)
            summation.run([own if other == rank else slots(other, rank, index) for other in range(link.size)], total)
            if done is not None:
                done(total)
            wait_all(link, sent)  # results replace these
            if shares:
                shared.append(self.share(index, result, result))
            if len(shared) > self.window:
                wait_all(link, shared.popleft())
        for requests in shared:
            wait_all(link, requests)

    def share(self, index: int, own: Segments, others: Segments) -> list[object]:
        """Start to send a segment of this rank's block to all ranks, and to receive theirs."""
        received = [self.link.irecv(others(peer, index), peer) for peer in reversed(self.peers)]
        return received + [self.link.isend(own(self.link.rank, index), peer) for peer in self.peers]


class Summation:
    """Combines the pieces of one segment in rank order; half precision in float32."""

    def __init__(self, op: str, ops: Arithmetic, scratch: Scratch, kind: str | None, factor: float):
        self.op, self.ops, self.scratch, self.kind = op, ops, scratch, kind
        self.combine, self.combine_last = combiner(ops, op), combiner(ops, op, factor)

    def run(self, pieces: list[Array], out: Array) -> None:
        n = out.size
        if n == 0:
            return
        if self.kind is None:
            total = self.scratch(n, slot="total")[:n]
            total[:] = pieces[0]
            for piece in pieces[1:-1]:
                self.combine(total, piece)
            self.combine_last(total, pieces[-1])
            out[:] = total
            return
        total = self.scratch(n, "float32", slot="total")[:n]
        self.ops.widen(total, pieces[0], self.kind)
        for piece in pieces[1:]:
            self.add_half(total, piece, self.kind)
        self.ops.narrow(out, total, self.kind)

    def add_half(self, total: Array, piece: Array, kind: str) -> None:
        if self.op == "sum":
            self.ops.add_widened(total, piece, kind)
            return
        wide = self.scratch(total.size, "float32", slot="wide")[: total.size]
        self.ops.widen(wide, piece, kind)
        self.combine(total, wide)
