"""Recursive halving and doubling (Rabenseifner's all-reduce), for any number of ranks.

Schedule      Fold: with pof2 the largest power of two not above p and rem = p - pof2, the even ranks below 2 rem send
              their vector to their odd neighbour and pause. The pof2 ranks left get a newrank. Halving: with mask
              pof2/2, ..., 2 partners newrank ^ mask swap halves of what they still hold and add the half they keep,
              in segments, so that adding one overlaps the transfer of the next. With mask 1 partners halve and
              double in one stream, a ring of two: a segment goes back as soon as it is added. Doubling: with mask 2,
              ..., pof2/2 they swap back the finished parts. Unfold: the odd neighbours hand the result back.
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
from .ring import Place, around
from .segments import segments

SEGMENT_BYTES = 3 << 19  # 1.5 MiB
WINDOW = 2  # segments in flight in each direction


def allreduce(
    link: Link, work: Array, op: str, ops: Arithmetic, scratch: Scratch, factor: float = 1.0,
    source: Array | None = None,
) -> None:
    rank, size = link.rank, link.size
    if size == 1 or work.size == 0:
        return
    combine = combiner(ops, op)
    sums = Swap(link, scratch, segments(link, work, work.nbytes // 2, (SEGMENT_BYTES, WINDOW)))
    copies = Swap(link, scratch, segments(link, work, work.nbytes // 2, (work.nbytes, 1)))  # nothing to overlap
    pof2 = 1 << (size.bit_length() - 1)
    rem = size - pof2
    nothing = work[:0]

    folded = rank < 2 * rem
    if folded and rank % 2 == 0:
        sums(rank + 1, work if source is None else source, nothing)
        copies(rank + 1, nothing, work)
        return
    if folded:
        sums(rank - 1, nothing, work, combine, source)
        source = None

    newrank = rank // 2 if folded else rank - rem
    halve_and_double((sums, copies), work, source, newrank, pof2, rem, (combine, combiner(ops, op, factor)))

    if folded:
        copies(rank - 1, work, nothing)


def halve_and_double(swaps: tuple[Swap, Swap], work: Array, source: Array | None, newrank: int, pof2: int, rem: int,
                     combines: tuple[Combine, Combine]) -> None:
    """Reduce among the ``pof2`` ranks that are left after folding.

    The first halving reads ``source`` (None: ``work``). The second of ``combines`` makes final values.
    """
    sums, copies = swaps
    held = range(pof2)  # blocks that this rank still holds
    swapped = []
    while len(held) > 2:
        half = len(held) // 2
        mine, theirs = (held[:half], held[half:]) if not newrank & half else (held[half:], held[:half])
        peer = real_rank(newrank ^ half, rem)
        own = None if source is None else part(source, pof2, mine)
        sums(peer, part(work if source is None else source, pof2, theirs), part(work, pof2, mine), combines[0], own)
        source, held = None, mine
        swapped.append((peer, mine, theirs))

    peer = real_rank(newrank ^ 1, rem)
    own = None if source is None else part(source, pof2, held)
    around(sums.link, Place(newrank & 1, 2, peer, peer), part(work, pof2, held), own, combines, sums.scratch, sums.cut)

    for peer, mine, theirs in reversed(swapped):
        copies(peer, part(work, pof2, mine), part(work, pof2, theirs))


def real_rank(newrank: int, rem: int) -> int:
    return newrank * 2 + 1 if newrank < rem else newrank + rem


def part(work: Array, pof2: int, blocks: range) -> Array:
    """Return the neighbouring ``blocks`` of the ``pof2`` blocks of ``work``."""
    return work[offset(work.size, pof2, blocks.start) : offset(work.size, pof2, blocks.stop)]


class Swap:
    """``swap(peer, outgoing, incoming)``: send while receiving; ``cut`` is as for a ring's ``around``."""

    def __init__(self, link: Link, scratch: Scratch, cut: tuple[int, int]) -> None:
        self.link, self.scratch, self.cut = link, scratch, cut

    def __call__(self, peer: int, outgoing: Array, incoming: Array, combine: Combine | None = None,
                 own: Array | None = None) -> None:
        """Receive into ``incoming``; with ``combine``, combine with its content, or with ``own`` if that is given."""
        link, (nbytes, window) = self.link, self.cut
        length = max(1, nbytes // incoming.itemsize)
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
