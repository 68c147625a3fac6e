"""ScaleCom's leader exchange: one rank chooses the coordinates, so that values add up position by position."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..values import Array, Compensated, Exchanged, Mean, Sent


class Leader:
    """Cyclic local top-k (CLT-k): the leader of step t is worker t mod workers; all send at its coordinates.

    Schedule: the leader selects and broadcasts the selection in the selector's compact form; every worker
    gathers its own values there; one dense all-reduce of k values.
    Cost: 2 (size-1)/size * k values a rank plus one broadcast of the selection: it does not grow with the number
    of ranks (no gradient build-up). Chunk-max selects in the pass that accumulates the memory, so leading costs
    no more memory traffic than following.
    Restrictions: any selector; codes must be addable.
    Reference: Chen et al., ScaleCom, NeurIPS 2020, algorithm 1.
    """

    name = "leader"
    options = ()
    reference = "Chen et al. 2020 (ScaleCom)"
    wire = "2 (p-1)/p k v + k i"

    def select(self, workers: list[Compensated], step: Any) -> list[int]:
        self._leader, local = step.owner(step.number % step.total_workers)
        self._chosen = None
        nonfinite = []
        for worker, u in enumerate(workers):
            if (step.comm.rank, worker) == (self._leader, local):
                self._chosen, count = step.selector.select(u, step.spans, step.ops)
            else:
                count = u.accumulate(step.ops)
            nonfinite.append(count)
        return nonfinite

    def compress(self, workers: list[Compensated], step: Any) -> list[Sent]:
        with step.timed("broadcast"):
            chosen = self._broadcast(self._chosen, step)
        self._selection_bits = 8.0 * chosen.nbytes
        indices = step.selector.expand(chosen, step.n, step.spans, step.ops)
        return [self._sent(u, indices, step) for u in workers]

    def exchange(self, workers: list[Compensated], sent: list[Sent], step: Any) -> Exchanged:
        mean = step.mean_of([s.values for s in sent])
        value_bits = 8.0 * mean.size * step.codec.dtype(mean.dtype).itemsize
        payload = value_bits + self._selection_bits / step.total_workers  # a worker leads once in so many steps
        return Exchanged(Mean(sent[0].indices, mean, step.n), sent, payload, self._leader)

    def _broadcast(self, chosen: Array | None, step: Any) -> Array:
        """The leader's selection, on every rank, in the selector's compact form."""
        if chosen is None:
            chosen = step.selector.wire_like(step.n, step.spans, step.ops)
        if step.selector.wire_like(step.n, [], step.ops) is None:  # a length that only the leader knows
            length = np.array([0 if chosen is None else chosen.size], np.int64)
            step.comm.broadcast(length, self._leader)
            if chosen is None:
                chosen = step.ops.empty(int(length[0]), step.ops.index_dtype(step.n))
        step.comm.broadcast(chosen, self._leader)
        return chosen

    def _sent(self, u: Compensated, indices: Array, step: Any) -> Sent:
        """This worker's own values at the leader's coordinates, as the codec leaves them."""
        values = step.ops.empty(indices.size, u.gradient.dtype)
        step.ops.gather(u.memory, u.gradient, indices, values)
        if step.codec.dtype(values.dtype) != values.dtype:
            values = step.codec.decode(step.codec.encode(values, step.ops), values.dtype, step.ops)
        return Sent(indices, values)
