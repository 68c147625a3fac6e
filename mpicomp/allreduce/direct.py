"""Direct all-reduce: every rank sums its own block of all vectors, in rank order; half precision in float32.

Schedule      Each rank sends piece b of its vector to rank b, which adds the p pieces of its own block in the order of
              the ranks (a half-precision piece is widened to float32, and the sum is rounded once at the end).
              Then every rank sends its finished block to all others. Pieces travel in segments.
Cost          2 steps of p-1 messages a segment; 2(p-1)/p n bytes sent a rank; (p-1)/p n additions.
Restrictions  p-1 messages at a time, so for tens of ranks, not thousands; scratch of 2 p segments.
              ``kind`` "float16" or "bfloat16" says what a uint16 vector holds.
Reference     the "pairwise" reduce-scatter of Thakur, Rabenseifner, Gropp 2005, all partners at once.
"""

from __future__ import annotations

from typing import Any

from ..partition import chunk_count, partition
from . import combiner

SEGMENT_BYTES = 1 << 18


def allreduce(link: Any, work: Any, op: str, ops: Any, scratch: Any, kind: str | None = None) -> None:
    if link.size == 1 or work.size == 0:
        return
    reduce_own_block(link, work, Summation(op, ops, scratch, kind), scratch)
    share_own_blocks(link, work)


def reduce_own_block(link: Any, work: Any, summation: Summation, scratch: Any) -> None:
    rank, size = link.rank, link.size
    counts, displs = partition(work.size, size)
    length = max(1, min(counts[0], SEGMENT_BYTES // work.itemsize))
    n_segments = chunk_count(counts[0], length)
    peers = [(rank + shift) % size for shift in range(1, size)]
    slots = scratch(2 * size * length)  # two sets: one is received while the other is added

    def segment(block: int, index: int) -> Any:
        begin = displs[block] + index * length
        return work[begin : max(begin, min(begin + length, displs[block] + counts[block]))]

    def slot(source: int, index: int) -> Any:
        begin = ((index % 2) * size + source) * length
        return slots[begin : begin + segment(rank, index).size]

    def start(index: int) -> tuple[list[Any], list[Any]]:
        received = [link.irecv(slot(source, index), source) for source in reversed(peers)]
        return received, [link.isend(segment(peer, index), peer) for peer in peers]

    started = start(0)
    for index in range(n_segments):
        received, sent = started
        if index + 1 < n_segments:
            started = start(index + 1)
        for request in received:
            link.wait(request)
        own = segment(rank, index)
        summation.run([own if source == rank else slot(source, index) for source in range(size)], own)
        for request in sent:
            link.wait(request)


def share_own_blocks(link: Any, work: Any) -> None:
    rank, size = link.rank, link.size
    counts, displs = partition(work.size, size)
    blocks = [work[displs[block] : displs[block] + counts[block]] for block in range(size)]
    peers = [(rank + shift) % size for shift in range(1, size)]
    requests = [link.irecv(blocks[source], source) for source in reversed(peers)]
    requests += [link.isend(blocks[rank], peer) for peer in peers]
    for request in requests:
        link.wait(request)


class Summation:
    """Combines the pieces of one segment in rank order, in float32 where they are half precision."""

    def __init__(self, op: str, ops: Any, scratch: Any, kind: str | None):
        self.op, self.ops, self.scratch, self.kind = op, ops, scratch, kind
        self.combine = combiner(ops, op)

    def run(self, pieces: list[Any], out: Any) -> None:
        n = out.size
        if n == 0:
            return
        if self.kind is None:
            total = self.scratch(n, slot="total")[:n]
            total[:] = pieces[0]
            for piece in pieces[1:]:
                self.combine(total, piece)
            out[:] = total
            return
        total = self.scratch(n, "float32", slot="total")[:n]
        self.ops.widen(total, pieces[0], self.kind)
        for piece in pieces[1:]:
            self.add_half(total, piece)
        self.ops.narrow(out, total, self.kind)

    def add_half(self, total: Any, piece: Any) -> None:
        if self.op == "sum":
            self.ops.add_widened(total, piece, self.kind)
            return
        wide = self.scratch(total.size, "float32", slot="wide")[: total.size]
        self.ops.widen(wide, piece, self.kind)
        self.combine(total, wide)
