"""Assignment of rows to workers: the shards of one rank's virtual workers, and the rows they sample."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .data import Dataset
from .matrix import Matrix


class Shards:
    """The rows of this rank's workers, and who samples which of them.

    Rows are shuffled once and cut into contiguous shards whose sizes differ by at most one. Every rank draws the
    samples of all workers and uses its own, which makes a run independent of the number of ranks.
    """

    def __init__(self, rank: int, ranks: int, data: Dataset, workers: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        rows = np.array_split(self._rng.permutation(data.labels.size), workers)
        self._sizes = np.array([shard.size for shard in rows])
        self._own = np.array_split(np.arange(workers), ranks)[rank]
        self.starts = np.cumsum(self._sizes[self._own]) - self._sizes[self._own]
        own_rows = np.concatenate([rows[worker] for worker in self._own])
        self.features: Matrix = data.features.take(own_rows)
        self.labels = data.labels[own_rows]
        self.count = self._own.size  # workers on this rank
        self.steps_per_epoch = int(self._sizes.max())
        # A row of a smaller shard is drawn more often; this makes the mean gradient unbiased.
        self.weights = self._sizes[self._own] * (workers / data.labels.size)

    def samples(self, steps: int, done: int = 0) -> Iterator[np.ndarray]:
        """For each step, the row (of this rank's ``features``) that each of its workers uses; with replacement.

        The first ``done`` steps are left out; what they used is drawn again, since all the rest depends on it.
        """
        for start in range(0, steps, self.steps_per_epoch):
            block = min(self.steps_per_epoch, steps - start)
            drawn = self._rng.integers(self._sizes, size=(block, self._sizes.size))
            yield from self.starts + drawn[max(0, done - start) :, self._own]
