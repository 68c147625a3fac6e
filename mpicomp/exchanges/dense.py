"""The dense exchange: every rank's whole vector, added by an all-reduce."""

from __future__ import annotations

from typing import Any

from ..values import Compensated, Exchanged, Mean, Sent


class Dense:
    """All-reduce of the encoded vectors.

    Schedule: one dense all-reduce of n values in the codec's precision, by the reducer's ``algorithm``.
    Cost: 2 (size-1)/size * n values a rank, sent and received.
    Restrictions: the selector is not asked; the decoded vectors of several workers on one rank are added first.
    Reference: see the files of ``mpicomp.allreduce``.
    """

    name = "dense"
    options = ()
    reference = "Patarasuk and Yuan 2009 (ring); Thakur et al. 2005 (halving-doubling)"
    wire = "2 (p-1)/p n v"

    def select(self, workers: list[Compensated], step: Any) -> list[int]:
        return [step.ops.count_nonfinite(u.gradient)[0] for u in workers]

    def compress(self, workers: list[Compensated], step: Any) -> list[Sent]:
        sent = []
        for worker, u in enumerate(workers):
            values = step.scratch(f"dense-{worker}", u.n, u.gradient.dtype)
            values[:] = u.gradient
            if u.memory is not None:
                step.ops.add(values, u.memory)
            if step.codec.dtype(values.dtype) != values.dtype:
                values = step.codec.decode(step.codec.encode(values, step.ops), values.dtype, step.ops)
            sent.append(Sent(None, values))
        return sent

    def exchange(self, workers: list[Compensated], sent: list[Sent], step: Any) -> Exchanged:
        remembered = any(u.memory is not None for u in workers)  # then the update reads what was sent
        mean = step.mean_of([s.values for s in sent], consume=not remembered)
        n = workers[0].n
        return Exchanged(Mean(None, mean, n), sent, 8.0 * n * step.codec.dtype(mean.dtype).itemsize)
