"""All-gather of vectors of different lengths.

Schedule      With the lengths known: Bruck's all-gather for short vectors, else around a ring: in step s a rank
              sends block rank-s to the right and receives block rank-s-1 from the left.
Cost          Ring: p-1 steps; a rank sends all blocks but its right neighbour's. Bruck: ceil(log2(p)) steps, the
              same bytes up to the rotation.
Restrictions  none.
Reference     Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems",
              1997; Open MPI coll_base_allgatherv.c (ring).
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

BRUCK_BYTES = 32 * 1024


def gather_to_all(link: Any, x: Any, flat: Any, counts: list[int]) -> None:
    """Put the 1-D arrays ``x`` of all ranks, of ``counts`` elements, one after the other into ``flat``."""
    displs = [0, *accumulate(counts[:-1])]
    blocks = [flat[displ : displ + count] for displ, count in zip(displs, counts, strict=True)]
    if flat.nbytes > BRUCK_BYTES or link.size <= 2:
        blocks[link.rank][...] = x
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


def ring(link: Any, blocks: list[Any]) -> None:
    left, right = (link.rank - 1) % link.size, (link.rank + 1) % link.size
    for step in range(link.size - 1):
        outgoing, incoming = blocks[(link.rank - step) % link.size], blocks[(link.rank - step - 1) % link.size]
        link.sendrecv(outgoing, right, incoming, left)


def bruck(link: Any, rotated: Any, counts: list[int]) -> None:
    """``rotated`` holds this rank's block first, then those of rank+1, rank+2, ...; ``counts`` in that order.

    After the step of distance d the first 2d blocks are here: d of our own and d of rank+d.
    """
    edges = [0, *accumulate(counts)]
    # A neighbour's first blocks are ours, further on: rank-d wants our first blocks, as many as it still lacks.
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
