"""Recursive halving and doubling (Rabenseifner's all-reduce), for any number of ranks.

Schedule      Fold: with pof2 the largest power of two not above p and rem = p - pof2, the even ranks below 2 rem send
              their vector to their odd neighbour and pause. The pof2 ranks left get a newrank. Halving: with mask
              pof2/2, ..., 1 partners newrank ^ mask swap halves of what they still hold and add the half they keep.
              Doubling: with mask 1, ..., pof2/2 they swap back the finished parts. Unfold: the odd neighbours hand
              the result back. Each swap goes in segments, so that adding one overlaps the transfer of the next.
Cost          2 log2(pof2) steps (+2 when folded); 2(pof2-1)/pof2 n bytes sent (+n when folded).
Restrictions  None; scratch of as many segments as are in flight. Good for medium vectors and many ranks.
Reference     Rabenseifner, "Optimization of collective reduction operations", 2004;
              Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005.
"""

from __future__ import annotations

from .._util.partition import chunk_count, offset
from ..types import Array
from . import Combine, combiner
from .interfaces import Arithmetic, Link, Scratch
from .segments import segments

SEGMENT_BYTES = 1 << 20
WINDOW = 4  # segments in flight in each direction


def allreduce(
    link: Link, work: Array, op: str, ops: Arithmetic, scratch: Scratch, factor: float = 1.0,
    source: Array | None = None,
) -> None:
    rank, size = link.rank, link.size
    if size == 1 or work.size == 0:
        return
    combine = combiner(ops, op)
    swap = Swap(link, scratch, *segments(link, work, work.nbytes // 2, (SEGMENT_BYTES, WINDOW)))
    pof2 = 1 << (size.bit_length() - 1)
    rem = size - pof2
    nothing = work[:0]

    folded = rank < 2 * rem
    if folded and rank % 2 == 0:
        swap(rank + 1, work if source is None else source, nothing)
        swap(rank + 1, nothing, work)
        return
    if folded:
        swap(rank - 1, nothing, work, combine, source)
        source = None

    newrank = rank // 2 if folded else rank - rem
    halve_and_double(swap, work, source, newrank, pof2, rem, (combine, combiner(ops, op, factor)))

    if folded:
        swap(rank - 1, work, nothing)


def halve_and_double(swap: Swap, work: Array, source: Array | None, newrank: int, pof2: int, rem: int,
                     combines: tuple[Combine, Combine]) -> None:
    """Reduce among the ``pof2`` ranks that are left after folding.

    The first halving reads ``source`` (None: ``work``). The elements of the last one are final: it uses the second of
    ``combines``.
    """
    kept = [(0, pof2)]  # blocks this rank still holds, before each halving
    mask = pof2 >> 1
    while mask:
        low, high = kept[-1]
        middle = (low + high) // 2
        halves = [(low, middle), (middle, high)]
        mine, theirs = halves if not newrank & mask else halves[::-1]
        peer = real_rank(newrank ^ mask, rem)
        given = work if source is None else source
        own = None if source is None else part(source, pof2, mine)
        swap(peer, part(given, pof2, theirs), part(work, pof2, mine), combines[mask == 1], own)
        source = None
        kept.append(mine)
        mask >>= 1

    while len(kept) > 1:
        low, high = kept.pop()
        whole_low, whole_high = kept[-1]
        mask = high - low
        theirs = (high, whole_high) if low == whole_low else (whole_low, low)
        peer = real_rank(newrank ^ mask, rem)
        swap(peer, part(work, pof2, (low, high)), part(work, pof2, theirs))


def real_rank(newrank: int, rem: int) -> int:
    return newrank * 2 + 1 if newrank < rem else newrank + rem


def part(work: Array, pof2: int, blocks: tuple[int, int]) -> Array:
    """Return the neighbouring ``blocks``, from begin to end, of the ``pof2`` blocks of ``work``."""
    return work[offset(work.size, pof2, blocks[0]) : offset(work.size, pof2, blocks[1])]


class Swap:
    """``swap(peer, outgoing, incoming)``: send while receiving, in segments of which ``window`` are in flight."""

    def __init__(self, link: Link, scratch: Scratch, nbytes: int, window: int) -> None:
        self.link, self.scratch, self.nbytes, self.window = link, scratch, nbytes, window

    def __call__(self, peer: int, outgoing: Array, incoming: Array, combine: Combine | None = None,
                 own: Array | None = None) -> None:
        """Receive into ``incoming``; with ``combine``, combine with its content, or with ``own`` if that is given."""
        link, window = self.link, self.window
        length = max(1, self.nbytes // incoming.itemsize)
        n_out, n_in = chunk_count(outgoing.size, length), chunk_count(incoming.size, length)
        slots = self.scratch(min(window * length, incoming.size)) if combine and own is None else None

        def receive(index: int) -> tuple[object, Array, Array | None]:
            place = incoming[index * length : (index + 1) * length]
            if slots is None:
                other = None if own is None else own[index * length : (index + 1) * length]
                return link.irecv(place, peer), place, other
            begin = (index % window) * length
            slot = slots[begin : begin + place.size]
            return link.irecv(slot, peer), place, slot

        def send(index: int) -> object:
            return link.isend(outgoing[index * length : (index + 1) * length], peer)

        inbox = [receive(index) for index in range(min(window, n_in))]
        outbox = [send(index) for index in range(min(window, n_out))]
        for index in range(max(n_in, n_out)):
            if index < n_in:
                request, place, other = inbox[index % window]
                link.wait(request)
                if combine is not None and other is not None:
                    combine(place, other)
            if index < n_out:
                link.wait(outbox[index % window])
            if index + window < n_out:
                outbox[index % window] = send(index + window)
            if index + window < n_in:
                inbox[index % window] = receive(index + window)
