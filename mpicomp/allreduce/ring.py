"""Ring all-reduce, segmented and pipelined.

Schedule      Reduce-scatter, then all-gather, around one ring. The vector is cut into p blocks. In step s a rank
              receives block rank-s-1 from its left neighbour and sends block rank-s to its right one; in the first
              p-1 steps the received block is added, in the last p-1 it is final and replaces. Every block travels in
              segments, and the segments of all steps form one stream: while one segment is added, the next ones
              are on the wire.
Cost          2(p-1) steps; 2(p-1)/p n bytes sent per rank, the least possible; (p-1)/p n additions.
Restrictions  None; in place, scratch of as many segments as are in flight. Best for long vectors: its latency grows
              with p.
Reference     Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009;
              Open MPI coll_base_allreduce.c (ring_segmented).
"""

from __future__ import annotations

from typing import NamedTuple

from .._util.partition import chunk_count, offset, partition
from ..types import Array
from . import Combine, combiner
from .interfaces import Arithmetic, Link, Scratch
from .segments import segments

SEGMENT_BYTES = 4 << 20
WINDOW = 2  # segments in flight in each direction


def allreduce(
    link: Link, work: Array, op: str, ops: Arithmetic, scratch: Scratch, factor: float = 1.0,
    source: Array | None = None,
) -> None:
    rank, size = link.rank, link.size
    if size == 1 or work.size == 0:
        return
    place = Place(rank, size, (rank - 1) % size, (rank + 1) % size)
    cut = segments(link, work, offset(work.size, size, 1) * work.itemsize, (SEGMENT_BYTES, WINDOW))
    around(link, place, work, source, (combiner(ops, op), combiner(ops, op, factor)), scratch, cut)


class Place(NamedTuple):
    """A rank's place in a ring: its number there, the length of the ring, and the ranks beside it."""

    number: int
    size: int
    left: int
    right: int


def around(link: Link, place: Place, work: Array, source: Array | None, combines: tuple[Combine, Combine],
           scratch: Scratch, cut: tuple[int, int]) -> None:
    """Reduce ``work`` over the ranks of a ring.

    The second of ``combines`` makes final values; ``cut`` is the bytes per segment and the segments in flight.
    """
    rank, size, left, right = place
    counts, displs = partition(work.size, size)
    length = max(1, min(counts[0], cut[0] // work.itemsize))
    n_segments = chunk_count(counts[0], length)
    items = 2 * (size - 1) * n_segments
    summed = items // 2  # items below are added, the others are final
    last = summed - n_segments  # from here on the sums are
    window = min(cut[1], summed)
    lag = min(cut[1], n_segments)  # sends run this many items ahead of receives
    slots = None if source is not None else scratch(window * length)
    first = work if source is None else source

    def segment(vector: Array, block: int, index: int) -> Array:
        begin = displs[block] + index * length
        return vector[begin : min(begin + length, displs[block] + counts[block])]

    def incoming(item: int, vector: Array = work) -> Array:
        step, index = divmod(item, n_segments)
        return segment(vector, (rank - step - 1) % size, index)

    def outgoing(item: int) -> Array:
        step, index = divmod(item, n_segments)
        return segment(work if step else first, (rank - step) % size, index)

    def receive(item: int) -> tuple[object, Array, Array | None]:
        target = incoming(item)
        if item >= summed:  # final: the old content went out (size-1)*n_segments items ago, and that send is done
            return link.irecv(target, left), target, None
        if slots is None:
            return link.irecv(target, left), target, incoming(item, work if source is None else source)
        begin = (item % window) * length
        slot = slots[begin : begin + target.size]
        return link.irecv(slot, left), target, slot

    inbox = [receive(item) for item in range(window)]
    outbox = [link.isend(outgoing(item), right) for item in range(lag)]
    for item in range(items):
        request, target, other = inbox[item % window]
        link.wait(request)
        if other is not None:
            combines[item >= last](target, other)
        link.wait(outbox[item % lag])
        if item + lag < items:
            outbox[item % lag] = link.isend(outgoing(item + lag), right)
        if item + window < items:
            inbox[item % window] = receive(item + window)
