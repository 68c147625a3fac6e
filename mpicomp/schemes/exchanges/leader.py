"""ScaleCom's leader exchange: one rank chooses the coordinates, so that values add up position by position."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...types import Array, Compensated, Exchanged, Mean, Sent
from ..wire import validation
from ._stateless import Stateless


class Leader(Stateless):
    """Cyclic local top-k (CLT-k): the leader of step t is worker t mod workers; all send at its coordinates.

    Schedule: the leader selects and broadcasts the selection in the selector's compact form; every worker
    gathers its own values there; one dense all-reduce of k values.
    Cost: 2 (size-1)/size * k values a rank plus one broadcast of the selection: it does not grow with the number
    of ranks (no gradient build-up). The leader reads memory and gradient once more than the others, who look for
    non-finite gradients meanwhile.
    Restrictions: any selector; codes must be addable.
    Reference: Chen et al., ScaleCom, NeurIPS 2020, algorithm 1.
    """

    name = "leader"
    options = ()
    reference = "Chen et al. 2020 (ScaleCom)"
    takes = "some"
    codecs = "addable"

    def select(self, workers: list[Compensated], step: Any) -> list[int]:
        self._leader, local = step.workers.owner(step.number % step.total_workers)
        self._lead = local if step.comm.rank == self._leader else None
        return [self._lead_with(u, step) if worker == self._lead else step.overflows(u)
                for worker, u in enumerate(workers)]

    def compress(self, workers: list[Compensated], step: Any) -> list[Sent]:
        with step.timed("broadcast"):
            indices = self._broadcast(step)
        values = [self._values if worker == self._lead else u.at(indices, step.ops) for worker, u in enumerate(workers)]
        places = [step.place(worker, indices) for worker in range(len(workers))]
        self._codes = step.encode_together(values, places)
        return [Sent(indices, step.codec.decode(codes, place, step))
                for codes, place in zip(self._codes, places, strict=True)]

    def exchange(self, workers: list[Compensated], sent: list[Sent], step: Any) -> Exchanged:
        indices = sent[0].indices
        mean = step.mean_of(self._codes, step.place(0, indices))
        selection = self._selection_bits / step.total_workers  # a worker leads once in so many steps
        payload = 8.0 * self._codes[0].nbytes + selection
        return Exchanged(Mean(indices, mean, step.n), sent, payload, self._leader)

    def _lead_with(self, u: Compensated, step: Any) -> int:
        """Select from the leading worker's u; where the selected values show it, they tell whether it is finite."""
        self._selection = step.selector.select(u, step)
        self._indices = step.selector.expand(self._selection, step)
        self._values, found = step.read(u, self._indices)
        return found

    def _broadcast(self, step: Any) -> Array:
        """The leader's indices on every rank; its selection travels in the selector's compact form."""
        leads = self._lead is not None
        like = step.selector.wire_like(step)
        if like is None:  # a length that only the leader knows
            length = np.array([self._selection.size if leads else 0], np.int64)
            step.comm.broadcast(length, self._leader)
            validation.counts(length.tolist(), step.n, "indices")
            like = step.ops.empty(int(length[0]), step.ops.index_dtype(step.n))
        selection = self._selection if leads else like
        step.comm.broadcast(selection, self._leader)
        self._selection_bits = 8.0 * selection.nbytes
        return self._indices if leads else validation.ascending(step.selector.expand(selection, step), step)
