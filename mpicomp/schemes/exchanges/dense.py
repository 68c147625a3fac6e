"""The dense exchange: every rank's whole vector, added by an all-reduce."""

from __future__ import annotations

from typing import Any

from ...types import Array, Compensated, Exchanged, Mean, Place, Sent, overlap
from ._stateless import Stateless


class Dense(Stateless):
    """All-reduce of the encoded vectors.

    Schedule: a dense all-reduce of n codes, by the reducer's ``algorithm`` (before it one number where the codec's
    scale is shared by all); long vectors in buckets, whose all-reduces are in flight at once.
    Cost: 2 (size-1)/size * n codes a rank, sent and received.
    Restrictions: codes must be addable; the selector is not asked; several workers on one rank are added first.
    Reference: see the files of ``mpicomp.allreduce``.
    """

    name = "dense"
    options = ()
    reference = "Patarasuk and Yuan 2009 (ring); Thakur et al. 2005 (halving-doubling)"
    takes = "all"
    codecs = "addable"

    def select(self, workers: list[Compensated], step: Any) -> list[int]:
        return [step.overflows(u) for u in workers]

    def compress(self, workers: list[Compensated], step: Any) -> list[Sent]:
        self._codes: list[Array] | None = None
        if step.workers.most == 1 and not step.remembers and not step.codec.shares_scale:
            return [Sent(None, workers[0].gradient)]  # nobody reads it; written as the exchange goes on
        places = [step.place(worker, None) for worker in range(len(workers))]
        # Integers of a unit are arrays of their own; other codes may be the values, and are overwritten.
        values = [u.gradient if step.codec.shares_scale and u.memory is None else step.whole(u, f"dense-{worker}")
                  for worker, u in enumerate(workers)]
        self._codes = step.encode_together(values, places)
        if not step.remembers:
            return [Sent(None, one) for one in values]
        return [Sent(None, step.codec.decode(codes, place, step))
                for codes, place in zip(self._codes, places, strict=True)]

    def exchange(self, workers: list[Compensated], sent: list[Sent], step: Any) -> Exchanged:
        place = step.place(0, None)
        if self._codes is None:
            mean, nbytes = self._written_on_the_way(workers[0], place, step)
        else:
            mean = step.mean_of(self._codes, place, consume=not step.remembers)
            nbytes = self._codes[0].nbytes
        return Exchanged(Mean(None, mean, step.n), sent, 8.0 * nbytes)

    def _written_on_the_way(self, u: Compensated, place: Place, step: Any) -> tuple[Array, int]:
        """The mean, and the bytes of this worker's codes: each bucket is copied and encoded just before it leaves.

        What is narrowed needs no copy, and neither does a mean that may lie in the gradient's place; not where it may
        overflow, which is to change nothing.
        """
        narrows = step.codec.may_overflow(step.dtype)
        kept, nbytes = step.target is None or narrows, 0
        values = step.scratch("dense-0", u.n, u.gradient.dtype) if kept else step.target
        if u.memory is None and step.sends_as_it_is:
            return step.mean_from(u.gradient, values), values.nbytes
        as_it_is = u.memory is None and (narrows or overlap(values, u.gradient))

        def part(begin: int, end: int) -> Array:
            nonlocal nbytes
            here = u.span(begin, end)
            own = here.gradient if as_it_is else here.copy_to(values[begin:end], step.ops)
            codes = step.codec.encode(own, place.part(begin, end), step)
            nbytes += codes.nbytes
            return codes

        return step.start_mean(u.gradient, part, place, values)(), nbytes
