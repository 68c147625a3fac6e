"""Recursive halving and doubling (Rabenseifner's all-reduce), for any number of ranks.

Schedule      Fold: with pof2 the largest power of two not above p and rem = p - pof2, the even ranks below 2 rem hand
              their vector to their odd neighbour and pause. The pof2 ranks left get a newrank. Halving: with mask
              pof2/2, ..., 1 partners newrank ^ mask swap halves of what they still hold and add the half they keep.
              Doubling: with mask 1, ..., pof2/2 they swap back the finished parts. Unfold: the odd neighbours hand
              the result back. Each swap goes in segments, so that adding one overlaps the transfer of the next.
Cost          2 log2(pof2) steps (+2 when folded); 2(pof2-1)/pof2 n bytes sent (+n when folded).
Restrictions  none; scratch of WINDOW segments. Good for medium vectors and many ranks.
Reference     Rabenseifner, "Optimization of collective reduction operations", 2004;
              Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..partition import chunk_count, offset
from . import combiner

SEGMENT_BYTES = 1 << 20
WINDOW = 4  # segments in flight in each direction

Combine = Callable[[Any, Any], None]


def allreduce(link: Any, work: Any, op: str, ops: Any, scratch: Any) -> None:
    rank, size = link.rank, link.size
    if size == 1 or work.size == 0:
        return
    combine = combiner(ops, op)
    pof2 = 1 << (size.bit_length() - 1)
    rem = size - pof2
    nothing = work[:0]

    folded = rank < 2 * rem
    if folded and rank % 2 == 0:
        swap(link, rank + 1, work, nothing, None, scratch)
        swap(link, rank + 1, nothing, work, None, scratch)
        return
    if folded:
        swap(link, rank - 1, nothing, work, combine, scratch)

    newrank = rank // 2 if folded else rank - rem
    halve_and_double(link, work, newrank, pof2, rem, combine, scratch)

    if folded:
        swap(link, rank - 1, work, nothing, None, scratch)


def halve_and_double(
    link: Any, work: Any, newrank: int, pof2: int, rem: int, combine: Combine, scratch: Any
) -> None:
    kept = [(0, pof2)]  # blocks this rank still holds, before each halving
    mask = pof2 >> 1
    while mask:
        low, high = kept[-1]
        middle = (low + high) // 2
        halves = [(low, middle), (middle, high)]
        mine, theirs = halves if not newrank & mask else halves[::-1]
        peer = real_rank(newrank ^ mask, rem)
        swap(link, peer, part(work, pof2, theirs), part(work, pof2, mine), combine, scratch)
        kept.append(mine)
        mask >>= 1

    while len(kept) > 1:
        low, high = kept.pop()
        whole_low, whole_high = kept[-1]
        mask = high - low
        theirs = (high, whole_high) if low == whole_low else (whole_low, low)
        peer = real_rank(newrank ^ mask, rem)
        swap(link, peer, part(work, pof2, (low, high)), part(work, pof2, theirs), None, scratch)


def real_rank(newrank: int, rem: int) -> int:
    return newrank * 2 + 1 if newrank < rem else newrank + rem


def part(work: Any, pof2: int, blocks: tuple[int, int]) -> Any:
    """Some neighbouring ones of ``pof2`` blocks; where they lie is worked out alone, not from a list of all."""
    return work[offset(work.size, pof2, blocks[0]) : offset(work.size, pof2, blocks[1])]


def swap(link: Any, peer: int, outgoing: Any, incoming: Any, combine: Combine | None, scratch: Any) -> None:
    """Send ``outgoing`` to ``peer`` while ``incoming`` is received: added with ``combine``, or put in place."""
    length = max(1, SEGMENT_BYTES // incoming.itemsize)
    n_out, n_in = chunk_count(outgoing.size, length), chunk_count(incoming.size, length)
    slots = scratch(min(WINDOW * length, incoming.size)) if combine else None

    def receive(index: int) -> tuple[Any, Any, Any]:
        place = incoming[index * length : (index + 1) * length]
        if combine is None:
            return link.irecv(place, peer), place, None
        begin = (index % WINDOW) * length
        slot = slots[begin : begin + place.size]
        return link.irecv(slot, peer), place, slot

    def send(index: int) -> Any:
        return link.isend(outgoing[index * length : (index + 1) * length], peer)

    inbox = [receive(index) for index in range(min(WINDOW, n_in))]
    outbox = [send(index) for index in range(min(WINDOW, n_out))]
    for index in range(max(n_in, n_out)):
        if index < n_in:
            request, place, slot = inbox[index % WINDOW]
            link.wait(request)
            if slot is not None:
                combine(place, slot)
        if index < n_out:
            link.wait(outbox[index % WINDOW])
        if index + WINDOW < n_out:
            outbox[index % WINDOW] = send(index + WINDOW)
        if index + WINDOW < n_in:
            inbox[index % WINDOW] = receive(index + WINDOW)
