"""The feature matrix of a data set, dense or in compressed sparse rows, with the few products training needs.

Both classes have the same methods, so that nothing else asks which one it has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

DENSE_ABOVE = 0.25  # share of non-zeros from which a dense matrix is smaller (8 bytes against 16) and faster
BLOCK = 1 << 22  # elements of a temporary dense block


class Dense(NamedTuple):
    """Rows of float64 features, shape (m, d)."""

    values: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape

    @property
    def nonzeros(self) -> int:
        return int(np.count_nonzero(self.values))

    def times(self, x: np.ndarray) -> np.ndarray:
        """A x."""
        return self.values @ x

    def transposed_times(self, r: np.ndarray) -> np.ndarray:
        """A^T r."""
        return self.values.T @ r

    def gram(self, weights: np.ndarray) -> np.ndarray:
        """A^T diag(weights) A, shape (d, d)."""
        return (self.values.T * weights) @ self.values

    def take(self, rows: np.ndarray) -> Dense:
        return Dense(self.values[rows])

    def dense_rows(self, rows: np.ndarray) -> np.ndarray:
        """A copy of some rows, shape (rows, d)."""
        return self.values[rows]


class Sparse(NamedTuple):
    """Compressed sparse rows: row i has values[offsets[i]:offsets[i+1]] in columns[offsets[i]:offsets[i+1]]."""

    values: np.ndarray  # float64
    columns: np.ndarray  # int64, ascending and distinct within a row
    offsets: np.ndarray  # int64, shape (m + 1,)
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.offsets.size - 1, self.width

    @property
    def nonzeros(self) -> int:
        return int(np.count_nonzero(self.values))

    def times(self, x: np.ndarray) -> np.ndarray:
        """A x."""
        return np.bincount(self._row_of_each(), self.values * x[self.columns], minlength=self.shape[0])

    def transposed_times(self, r: np.ndarray) -> np.ndarray:
        """A^T r."""
        return np.bincount(self.columns, self.values * r[self._row_of_each()], minlength=self.width)

    def gram(self, weights: np.ndarray) -> np.ndarray:
        """A^T diag(weights) A, shape (d, d)."""
        total = np.zeros((self.width, self.width))
        step = max(1, BLOCK // self.width)
        for start in range(0, self.shape[0], step):
            rows = np.arange(start, min(start + step, self.shape[0]))
            block = self.dense_rows(rows)
            total += (block.T * weights[rows]) @ block
        return total

    def take(self, rows: np.ndarray) -> Sparse:
        where, counts = self._entries(rows)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return Sparse(self.values[where], self.columns[where], offsets, self.width)

    def dense_rows(self, rows: np.ndarray) -> np.ndarray:
        """A copy of some rows, shape (rows, d)."""
        where, counts = self._entries(rows)
        block = np.zeros((len(rows), self.width))
        block[np.repeat(np.arange(len(rows)), counts), self.columns[where]] = self.values[where]
        return block

    def _row_of_each(self) -> np.ndarray:
        return np.repeat(np.arange(self.shape[0]), np.diff(self.offsets))

    def _entries(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the entries of some rows, in order, and the number of entries of each row."""
        starts = self.offsets[rows]
        counts = self.offsets[rows + 1] - starts
        first = np.cumsum(counts) - counts  # where each row's entries begin in the result
        return np.arange(counts.sum()) + np.repeat(starts - first, counts), counts


Matrix = Dense | Sparse


def compact(sparse: Sparse) -> Matrix:
    """The smaller of the two forms."""
    rows, width = sparse.shape
    if sparse.values.size > DENSE_ABOVE * rows * width:
        return Dense(sparse.dense_rows(np.arange(rows)))
    return sparse
