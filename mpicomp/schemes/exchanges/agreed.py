"""Agreeing on coordinates before values are sent, without a leader: from a sum of sketches, or from a seed."""

from __future__ import annotations

from typing import Any

from ...types import Array, Compensated, Exchanged, Mean, Sent
from ._stateless import Stateless


class Agreed(Stateless):
    """All ranks work out the same coordinates from the sum of their sketches; values there add up.

    Schedule: one dense all-reduce of the selector's sketches (none where the sketch is empty: then coordinates follow
    from the seed alone), the choice of coordinates on every rank, one dense all-reduce of k values.
    Cost: 2 (size-1)/size * (k codes + one sketch) a rank, sent and received; no indices, and no growth with the number
    of ranks.
    Restrictions: a selector that can be agreed on; codes must be addable. Without a sketch the gradient is read once
    more, to see whether it is finite.
    Reference: ARC-Top-k, 2025; random-k with a shared seed: Stich et al., NeurIPS 2018.
    """

    name = "agreed"
    options = ()
    reference = "ARC-Top-k, 2025; Stich et al. 2018"
    takes = "agreed"
    codecs = "addable"

    def select(self, workers: list[Compensated], step: Any) -> list[int]:
        self._sketches = [step.selector.sketch(u, step) for u in workers]
        return [step.overflows(Compensated(None, sketch) if sketch.size else u)
                for sketch, u in zip(self._sketches, workers, strict=True)]

    def compress(self, workers: list[Compensated], step: Any) -> list[Sent]:
        indices = step.selector.pick(self._total(step), step)
        places = [step.place(worker, indices) for worker in range(len(workers))]
        self._codes = step.encode_together([u.at(indices, step.ops) for u in workers], places)
        return [Sent(indices, step.codec.decode(codes, place, step))
                for codes, place in zip(self._codes, places, strict=True)]

    def exchange(self, workers: list[Compensated], sent: list[Sent], step: Any) -> Exchanged:
        indices = sent[0].indices
        mean = step.mean_of(self._codes, step.place(0, indices))
        payload = 8.0 * (self._codes[0].nbytes + self._sketches[0].nbytes)
        return Exchanged(Mean(indices, mean, step.n), sent, payload)

    def _total(self, step: Any) -> Array:
        """The sum of all workers' sketches, the same bits on every rank."""
        total = self._sketches[0]
        for other in self._sketches[1:]:
            step.ops.add(total, other)
        if total.size:
            with step.timed("sketch"):
                step.comm.allreduce_in_place(total, step.algorithm)
        return total
