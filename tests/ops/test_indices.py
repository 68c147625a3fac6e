"""Reading and writing at indices, and the memory's update, against the oracle."""

import numpy as np
import pytest
from arrays import INDICES, REALS, SIZES, assert_same, some_indices, vector, with_specials

from mpicomp.ops import oracle

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.parametrize("index", INDICES),
    pytest.mark.parametrize("dtype", REALS),
]


def test_gather(ops, rng, dtype, index):
    for n in SIZES:
        memory, grad = (with_specials(rng, vector(rng, n, dtype)) for _ in range(2))
        indices = rng.permutation(some_indices(rng, n, index))  # any order will do
        values, expected = np.empty((2, len(indices)), dtype)
        for m in (memory, None):
            ops.gather(m, grad, indices, values)
            oracle.gather(m, grad, indices, expected)
            assert_same(values, expected)


@pytest.mark.parametrize("name", ["scatter", "scatter_add", "clear"])
def test_write(ops, rng, dtype, index, name):
    for n in SIZES:
        dst, indices = vector(rng, n, dtype), rng.permutation(some_indices(rng, n, index))
        values = () if name == "clear" else (vector(rng, len(indices), dtype),)
        expected = dst.copy()
        getattr(ops, name)(dst, indices, *values)
        getattr(oracle, name)(expected, indices, *values)
        assert_same(dst, expected)


@pytest.mark.parametrize("has_memory", [True, False])
def test_gather_counted(ops, rng, dtype, index, has_memory):
    for n in SIZES:
        grad, memory = with_specials(rng, vector(rng, n, dtype)), vector(rng, n, dtype) if has_memory else None
        for indices in (some_indices(rng, n, index), rng.permutation(n).astype(index)):
            values, expected = np.full((2, len(indices)), 7, dtype)
            found = ops.gather_counted(memory, grad, indices, values)
            assert found == oracle.gather_counted(memory, grad, indices, expected)
            assert found == np.count_nonzero(~np.isfinite(expected))
            assert_same(values, expected)
            assert (ops.gather_counted(memory, grad, indices, values, 0.5)
                    == oracle.gather_counted(memory, grad, indices, expected, 0.5))


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_masked_update(ops, rng, dtype, index, beta):
    for n in SIZES:
        memory, grad = vector(rng, n, dtype), with_specials(rng, vector(rng, n, dtype))
        indices = some_indices(rng, n, index)
        sent, expected = vector(rng, len(indices), dtype), memory.copy()
        oracle.masked_update(expected, grad, indices, sent, beta)
        ops.masked_update(memory, grad, indices, sent, beta)
        assert_same(memory, expected)


def test_masked_update_where_everything_was_sent(ops, rng, dtype, index):
    memory, grad, sent = (vector(rng, 3000, dtype) for _ in range(3))
    indices, expected = np.arange(3000, dtype=index), memory.copy()
    oracle.masked_update(expected, grad, indices, sent, 0.5)
    ops.masked_update(memory, grad, indices, sent, 0.5)
    assert_same(memory, expected)
