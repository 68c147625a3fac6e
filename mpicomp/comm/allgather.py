"""All-gather of vectors of different lengths.

Schedule      With the lengths known: Bruck's all-gather for short vectors, which two ranks swap; else around a ring: a
              rank sends its own block to the right, and then the blocks from the left, in the order of arrival, all
              but the last block, which is the right neighbour's own. Blocks travel in segments, several in flight.
Cost          Ring: p-1 steps; a rank sends all blocks but its right neighbour's. Bruck: ceil(log2(p)) steps, the
              same bytes up to the rotation.
Restrictions  None.
Reference     Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems",
              1997; Open MPI coll_base_allgatherv.c (ring).
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate

from .._util.partition import chunk_count, pieces
from ..allreduce.interfaces import Link
from ..allreduce.ring import SEGMENT_BYTES, WINDOW
from ..allreduce.segments import segments
from ..types import Array

BRUCK_BYTES = 32 * 1024


def gather_to_all(link: Link, x: Array, flat: Array, counts: list[int]) -> None:
    """Concatenate the 1-D arrays ``x`` of all ranks, of ``counts`` elements, in ``flat``."""
    displs = [0, *accumulate(counts[:-1])]
    blocks = [flat[displ : displ + count] for displ, count in zip(displs, counts, strict=True)]
    if flat.nbytes > BRUCK_BYTES or link.size <= 2:
        blocks[link.rank][...] = x
        if link.size == 2 and flat.nbytes <= BRUCK_BYTES:
            link.sendrecv(blocks[link.rank], 1 - link.rank, blocks[1 - link.rank], 1 - link.rank)
        else:
            ring(link, blocks)
        return
    rotated = flat.copy()
    rotated[: x.size] = x
    order = [(link.rank + shift) % link.size for shift in range(link.size)]
    bruck(link, rotated, [counts[block] for block in order])
    begin = 0
    for block in order:
        blocks[block][...] = rotated[begin : begin + counts[block]]
        begin += counts[block]


def ring(link: Link, blocks: list[Array]) -> None:
    rank, size = link.rank, link.size
    if size == 1:
        return
    left, right = (rank - 1) % size, (rank + 1) % size
    longest = max(block.nbytes for block in blocks)
    nbytes, window = segments(link, blocks[rank], longest, (SEGMENT_BYTES, WINDOW))
    length = max(1, nbytes // blocks[rank].itemsize)

    def cut(block: Array) -> list[Array]:
        return [block[begin:end] for begin, end in pieces(0, block.size, length)]

    own, arriving = cut(blocks[rank]), [part for step in range(1, size) for part in cut(blocks[(rank - step) % size])]
    leaving = [*own, *arriving[: len(arriving) - chunk_count(blocks[right].size, length)]]
    inbox = deque(link.irecv(part, left) for part in arriving[:window])
    outbox = deque(link.isend(part, right) for part in own[:window])
    sent = len(outbox)

    def send_next() -> None:
        nonlocal sent
        if len(outbox) == window:
            link.wait(outbox.popleft())
        outbox.append(link.isend(leaving[sent], right))
        sent += 1

    for number in range(len(arriving)):
        link.wait(inbox.popleft())
        if number + window < len(arriving):
            inbox.append(link.irecv(arriving[number + window], left))
        if sent < len(leaving):  # one of the first `number` that arrived, or of our own
            send_next()
    while sent < len(leaving):
        send_next()
    for request in outbox:
        link.wait(request)


def bruck(link: Link, rotated: Array, counts: list[int]) -> None:
    """Gather into ``rotated``, which holds this rank's block first, then those of rank+1, rank+2, ...

    ``counts`` are in that order. After the step of distance d the first 2d blocks are here.
    """
    edges = [0, *accumulate(counts)]
    # A neighbour's first blocks come later in ours: rank-d needs our first blocks, as many as it still lacks.
    distance = 1
    while distance < link.size:
        many = min(distance, link.size - distance)
        link.sendrecv(
            rotated[: edges[many]],
            (link.rank - distance) % link.size,
            rotated[edges[distance] : edges[distance + many]],
            (link.rank + distance) % link.size,
        )
        distance *= 2
