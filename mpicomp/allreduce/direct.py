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

from .._util.partition import chunk_count, partition
from ..types import Array
from . import combiner
from .interfaces import Arithmetic, Link, Scratch
from .segments import segments, wait_all

SEGMENT_BYTES = 1 << 19
WINDOW = 2  # segments of each rank in flight: one is received while the other is added


def allreduce(
    link: Link, work: Array, op: str, ops: Arithmetic, scratch: Scratch, factor: float = 1.0,
    source: Array | None = None, kind: str | None = None,
) -> None:
    if link.size == 1 or work.size == 0:
        return
    summation = Summation(op, ops, scratch, kind, factor)
    Blocks(link, work).run(summation, scratch, work if source is None else source, shares=True)


def reduce_scatter(link: Link, source: Array, out: Array, op: str, ops: Arithmetic, scratch: Scratch,
                   kind: str | None = None) -> None:
    """Write this rank's block of the reduction of ``source`` into ``out``; all blocks have one length."""
    Blocks(link, source).run(Summation(op, ops, scratch, kind, 1.0), scratch, source, out)


class Blocks:
    """The block of a vector that each rank sums, and its way there and back."""

    def __init__(self, link: Link, work: Array) -> None:
        self.link, self.work = link, work
        self.counts, self.displs = partition(work.size, link.size)
        self.peers = [(link.rank + shift) % link.size for shift in range(1, link.size)]

    def _cut(self, nbytes: int, window: int) -> tuple[int, range, int]:
        """Return the elements per segment, the numbers of a block's segments, and how many are in flight."""
        longest, itemsize = self.counts[0], self.work.itemsize
        nbytes, most = segments(self.link, self.work, longest * itemsize, (nbytes, window))
        window = max(window, most // len(self.peers))  # each of which is sent as many
        length = max(1, min(longest, nbytes // itemsize))
        return length, range(chunk_count(longest, length)), window

    def _segment(self, block: int, index: int, length: int, vector: Array | None = None) -> Array:
        """Return a segment of a block of ``work``, or of another vector."""
        begin = self.displs[block] + index * length
        vector = self.work if vector is None else vector
        return vector[begin : max(begin, min(begin + length, self.displs[block] + self.counts[block]))]

    def run(self, summation: Summation, scratch: Scratch, source: Array, out: Array | None = None,
            shares: bool = False) -> None:
        """Combine the pieces of this rank's block of ``source`` into the block of ``work``, or into ``out``.

        ``shares``: every combined segment goes to all ranks, while pieces of the next ones come in.
        """
        link, rank, size = self.link, self.link.rank, self.link.size
        length, indices, window = self._cut(SEGMENT_BYTES, WINDOW)
        slots = scratch(window * size * length)

        def slot(sender: int, index: int) -> Array:
            begin = ((index % window) * size + sender) * length
            return slots[begin : begin + self._segment(rank, index, length).size]

        def start(index: int) -> tuple[list[object], list[object]]:
            received = [link.irecv(slot(peer, index), peer) for peer in reversed(self.peers)]
            return received, [link.isend(self._segment(peer, index, length, source), peer) for peer in self.peers]

        def share(index: int) -> list[object]:
            received = [link.irecv(self._segment(peer, index, length), peer) for peer in reversed(self.peers)]
            own = self._segment(rank, index, length)
            return received + [link.isend(own, peer) for peer in self.peers]

        started = deque(start(index) for index in indices[: window - 1])
        shared: deque[list[object]] = deque()
        for index in indices:
            if index + window - 1 in indices:
                started.append(start(index + window - 1))
            received, sent = started.popleft()
            wait_all(link, received)
            own = self._segment(rank, index, length, source)
            pieces = [own if other == rank else slot(other, index) for other in range(size)]
            place = self._segment(rank, index, length) if out is None else out[index * length :][: own.size]
            summation.run(pieces, place)
            wait_all(link, sent)  # results replace these
            if shares:
                shared.append(share(index))
            if len(shared) > window:
                wait_all(link, shared.popleft())
        for requests in shared:
            wait_all(link, requests)


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
