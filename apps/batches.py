"""Which rows each virtual worker uses in each step: known to all ranks, the same on any number of them."""

from __future__ import annotations

import numpy as np

from mpicomp.partition import partition


class Batches:
    """Rows in a new random order every epoch, dealt out to the workers; what does not fill a step is left out.

    Everything follows from seed, workers, batch and step, so a run can begin in the middle, on any number of ranks.
    """

    def __init__(self, rank: int, ranks: int, rows: int, workers: int, batch: int, seed: int) -> None:
        counts, displs = partition(workers, ranks)
        self.own = range(displs[rank], displs[rank] + counts[rank])  # this rank's workers
        self.steps_per_epoch = rows // (workers * batch)
        self._rows, self._workers, self._batch, self._seed = rows, workers, batch, seed
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def of(self, step: int) -> list[np.ndarray]:
        """The rows of each of this rank's workers in a step, counted from 0 over all epochs."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order = np.random.default_rng([self._seed, epoch]).permutation(self._rows)
            self._epoch = epoch
        start = place * self._workers * self._batch
        dealt = self._order[start : start + self._workers * self._batch].reshape(self._workers, self._batch)
        return [dealt[worker] for worker in self.own]
