"""Reading and writing at indices, and the memory's update, against the oracle."""

import numpy as np
import pytest
from arrays import INDICES, REALS, SIZES, assert_same, some_indices, vector, with_specials

from mpicomp.ops import reference

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
            reference.gather(m, grad, indices, expected)
            assert_same(values, expected)


@pytest.mark.parametrize("name", ["scatter", "scatter_add", "clear"])
def test_write(ops, rng, dtype, index, name):
    for n in SIZES:
        dst, indices = vector(rng, n, dtype), rng.permutation(some_indices(rng, n, index))
        values = () if name == "clear" else (vector(rng, len(indices), dtype),)
        expected = dst.copy()
        getattr(ops, name)(dst, indices, *values)
        getattr(reference, name)(expected, indices, *values)
        assert_same(dst, expected)


@pytest.mark.parametrize("beta", [0.1, 1.0])
@pytest.mark.parametrize("in_place", [True, False])
def test_masked_update(ops, rng, dtype, index, beta, in_place):
    for n in SIZES:
        memory, grad = vector(rng, n, dtype), with_specials(rng, vector(rng, n, dtype))
        indices = some_indices(rng, n, index)
        sent, expected = vector(rng, len(indices), dtype), np.empty(n, dtype)
        nonfinite = reference.masked_update(expected, memory, grad, indices, sent, beta)
        following = memory if in_place else np.empty(n, dtype)
        assert ops.masked_update(following, memory, grad, indices, sent, beta) == nonfinite
        assert_same(following, expected)


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_correct(ops, rng, dtype, index, beta):
    for n in SIZES:
        memory, following, grad = (vector(rng, n, dtype) for _ in range(3))
        grad = with_specials(rng, grad)
        indices = rng.permutation(some_indices(rng, n, index))
        sent, expected = vector(rng, len(indices), dtype), following.copy()
        reference.correct(expected, memory, grad, indices, sent, beta)
        ops.correct(following, memory, grad, indices, sent, beta)
        assert_same(following, expected)


@pytest.mark.parametrize("offset", [0, 1, 5])
def test_masked_update_past_the_caches(cpu_ops, rng, dtype, index, offset):
    n = 2**20 + 3  # long enough for streaming stores, which need their target aligned: try it at any offset
    memory, grad = rng.standard_normal((2, n)).astype(dtype)
    indices = some_indices(rng, n, index)
    sent, following, expected = vector(rng, len(indices), dtype), np.zeros(n + 9, dtype), np.empty(n, dtype)
    reference.masked_update(expected, memory, grad, indices, sent, 0.3)
    cpu_ops.masked_update(following[offset : offset + n], memory, grad, indices, sent, 0.3)
    assert_same(following[offset : offset + n], expected)
    assert not following[:offset].any() and not following[offset + n :].any()
