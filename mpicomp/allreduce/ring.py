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

from .._util.partition import chunk_count, partition
from ..types import Array
from . import combiner
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
    combine, combine_last = combiner(ops, op), combiner(ops, op, factor)
    left, right = (rank - 1) % size, (rank + 1) % size
    counts, displs = partition(work.size, size)
    nbytes, most = segments(link, work, counts[0] * work.itemsize, (SEGMENT_BYTES, WINDOW))
    length = max(1, min(counts[0], nbytes // work.itemsize))
    n_segments = chunk_count(counts[0], length)
    items = 2 * (size - 1) * n_segments
    summed = items // 2  # items below are added, the others are final
    last = summed - n_segments  # from here on the sums are
    window = min(most, summed)
    lag = min(most, n_segments)  # sends run this many items ahead of receives
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
        place = incoming(item)
        if item >= summed:  # final: the old content went out (size-1)*n_segments items ago, and that send is done
            return link.irecv(place, left), place, None
        if slots is None:
            return link.irecv(place, left), place, incoming(item, work if source is None else source)
        begin = (item % window) * length
        slot = slots[begin : begin + place.size]
        return link.irecv(slot, left), place, slot

    inbox = [receive(item) for item in range(window)]
    outbox = [link.isend(outgoing(item), right) for item in range(lag)]
    for item in range(items):
        request, place, other = inbox[item % window]
        link.wait(request)
        if other is not None:
            (combine if item < last else combine_last)(place, other)
        link.wait(outbox[item % lag])
        if item + lag < items:
            outbox[item % lag] = link.isend(outgoing(item + lag), right)
        if item + window < items:
            inbox[item % window] = receive(item + window)
