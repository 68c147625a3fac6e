"""Which rows each virtual worker uses in each step: known to all ranks, the same on any number of them."""

from __future__ import annotations

import numpy as np

from mpicomp._util.partition import partition

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP = 0x9E3779B97F4A7C15


class Batches:
    """Rows in a new random order every epoch, dealt out to the workers; what does not fill a step is left out.

    Everything follows from seed, workers, batch and step, so a run can begin in the middle, on any number of ranks.
    """

    def __init__(self, rank: int, ranks: int, rows: int, workers: int, batch: int, seed: int) -> None:
        counts, displs = partition(workers, ranks)
        self.own = range(displs[rank], displs[rank] + counts[rank])  # this rank's workers
        self.carried = np.empty((len(self.own), 0), np.float32)  # from step to step, a row a worker
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


class Draws(Batches):
    """Numbers epoch * rows + row in place of rows, so that seed and number determine a row's randomness."""

    def of(self, step: int) -> list[np.ndarray]:
        dealt = super().of(step)
        return [rows + self._epoch * self._rows for rows in dealt]


class Streams(Batches):
    """Rows in their order, cut into batch streams a worker: each step takes the next row of every stream.

    Numbers are those of ``Draws``. A worker can carry a state along: what a step reads is in ``entering``, what it
    writes to ``carried`` the next step reads; a step computed twice reads the same. States are zero as an epoch begins.

    Parameters
    ----------
    *arguments
        Those of ``Batches``.
    state : int
        Numbers in the state of one stream.
    """

    def __init__(self, *arguments: int, state: int = 0) -> None:
        super().__init__(*arguments)
        self.carried = np.zeros((len(self.own), state * self._batch), np.float32)
        self.entering = self.carried

    def of(self, step: int) -> list[np.ndarray]:
        epoch, place = divmod(step, self.steps_per_epoch)
        self.entering, self.carried = self.carried, np.zeros_like(self.carried)
        if place == 0:
            self.entering = self.carried.copy()
        streams = np.arange(self._workers * self._batch).reshape(self._workers, self._batch)
        return [streams[worker] * self.steps_per_epoch + place + epoch * self._rows for worker in self.own]

    def worker(self, draws: np.ndarray) -> int:
        """Which of this rank's workers has these rows, counted from 0."""
        return int(draws[0]) % self._rows // (self.steps_per_epoch * self._batch) - self.own.start


def mixed(words: np.ndarray, seed: int) -> np.ndarray:
    """Each 64-bit word to a random one under a seed (SplitMix64: Steele et al., OOPSLA 2014)."""
    z = words + np.uint64(_STEP * (2 * seed + 1) % (1 << 64))
    z = (z ^ (z >> np.uint64(30))) * _MIX[0]
    z = (z ^ (z >> np.uint64(27))) * _MIX[1]
    return z ^ (z >> np.uint64(31))
