"""Dense and sparse matrices give the same products."""

import numpy as np
import pytest

from mpicomp.apps import matrix
from mpicomp.apps.matrix import Dense, Sparse


def both(rows=17, width=9, seed=0):
    """The same matrix in both forms, with empty rows and columns."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-4, 5, (rows, width)) * (rng.random((rows, width)) < 0.3) * 1.0
    values[[0, 5, -1]] = 0
    values[:, 3] = 0
    where = values != 0
    offsets = np.concatenate([[0], np.cumsum(where.sum(axis=1))])
    return Dense(values), Sparse(values[where], np.nonzero(where)[1], offsets, width)


def test_products():
    dense, sparse = both()
    x, r = np.arange(9.0), np.arange(17.0)
    assert dense.shape == sparse.shape and dense.nonzeros == sparse.nonzeros
    assert np.array_equal(dense.times(x), sparse.times(x))
    assert np.array_equal(dense.transposed_times(r), sparse.transposed_times(r))


@pytest.mark.parametrize("block", [1, 20, 1 << 20])
def test_gram(monkeypatch, block):
    monkeypatch.setattr(matrix, "BLOCK", block)
    dense, sparse = both()
    weights = np.arange(17.0)
    assert np.array_equal(dense.gram(weights), sparse.gram(weights))
    assert np.array_equal(dense.gram(weights), dense.values.T @ np.diag(weights) @ dense.values)


@pytest.mark.parametrize("rows", [[3], [0, 5], [5, 4, 4, 16, 0, 1], []])
def test_rows(rows):
    dense, sparse = both()
    rows = np.array(rows, int)
    assert np.array_equal(dense.dense_rows(rows), sparse.dense_rows(rows))
    taken = sparse.take(rows)
    assert taken.shape == (rows.size, 9)
    assert np.array_equal(taken.dense_rows(np.arange(rows.size)), dense.take(rows).values)
