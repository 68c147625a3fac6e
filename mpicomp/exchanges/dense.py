"""The dense exchange: every rank's whole vector, added by an all-reduce."""

from __future__ import annotations

from typing import Any

from ..values import Compensated, Exchanged, Mean, Sent
from ._stateless import Stateless


class Dense(Stateless):
    """All-reduce of the encoded vectors.

    Schedule: one dense all-reduce of n codes, by the reducer's ``algorithm`` (before it one number where the codec's
    scale is shared by all).
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
        return [step.ops.count_nonfinite(u.gradient)[0] for u in workers]

    def compress(self, workers: list[Compensated], step: Any) -> list[Sent]:
        places = [step.place(worker, None) for worker in range(len(workers))]
        values = [step.whole(u, f"dense-{worker}") for worker, u in enumerate(workers)]
        self._codes = step.encode_together(values, places)
        return [Sent(None, step.codec.decode(codes, place, step))
                for codes, place in zip(self._codes, places, strict=True)]

    def exchange(self, workers: list[Compensated], sent: list[Sent], step: Any) -> Exchanged:
        mean = step.mean_of(self._codes, step.place(0, None), consume=not step.remembers)
        return Exchanged(Mean(None, mean, step.n), sent, 8.0 * self._codes[0].nbytes)
