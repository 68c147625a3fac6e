"""Selections against the oracle: chunk maximum, threshold, exact top-k."""

import numpy as np
import pytest
from arrays import INDICES, REALS, SIZES, assert_same, vector, with_specials
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicomp.ops import cpu, oracle

CHUNKS = (1, 2, 3, 7, 16, 31, 33, 100, 112, 256, 257, 1500, 65536)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def inputs(rng, n, dtype, has_memory):
    """(memory or None, grad) with ties and everything that is not an ordinary number."""
    grad = with_specials(rng, vector(rng, n, dtype))
    return with_specials(rng, vector(rng, n, dtype)) if has_memory else None, grad


def positions_for(n, chunk):
    return np.zeros(-(-n // chunk), np.uint8 if chunk <= 256 else np.uint16)


@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("dtype", REALS)
def test_chunk_max(ops, rng, dtype, has_memory):
    for n in (*SIZES, 9000):
        memory, grad = inputs(rng, n, dtype, has_memory)
        for chunk in CHUNKS:
            positions, expected = positions_for(n, chunk), positions_for(n, chunk)
            ops.chunk_max(memory, grad, [(0, grad.size, chunk)], positions)
            oracle.chunk_max(memory, grad, [(0, grad.size, chunk)], expected)
            assert_same(positions, expected)


def test_chunk_max_in_the_largest_chunks(cpu_ops, rng):
    memory, grad = inputs(rng, 200_003, np.float32, True)
    for chunk in (4096, 65535, 65536):
        positions, expected = positions_for(len(grad), chunk), positions_for(len(grad), chunk)
        cpu_ops.chunk_max(memory, grad, [(0, grad.size, chunk)], positions)
        oracle.chunk_max(memory, grad, [(0, grad.size, chunk)], expected)
        assert_same(positions, expected)


@pytest.mark.parametrize("dtype", INDICES)
def test_chunk_indices(ops, rng, dtype):
    for n in SIZES:
        for chunk in CHUNKS:
            positions = positions_for(n, chunk)
            oracle.chunk_max(None, vector(rng, n, np.float32), [(0, vector(rng, n, np.float32).size, chunk)], positions)
            indices, expected = np.zeros((2, len(positions)), dtype)
            ops.chunk_indices(positions, [(0, n, chunk)], n, indices)
            oracle.chunk_indices(positions, [(0, n, chunk)], n, expected)
            assert_same(indices, expected)


@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("dtype", REALS)
def test_threshold(ops, rng, dtype, has_memory):
    for n in SIZES:
        memory, grad = inputs(rng, n, dtype, has_memory)
        for lam in (0.0, -0.0, 1e-310, 0.1, 1.5, float("inf")):
            assert_same(ops.threshold(memory, grad, [(0, grad.size)], [lam])[0],
                        oracle.threshold(memory, grad, [(0, grad.size)], [lam])[0])


@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("dtype", REALS)
def test_top_k(ops, rng, dtype, has_memory):
    for n in SIZES:
        memory, grad = inputs(rng, n, dtype, has_memory)
        for k in {0, min(n, 1), n // 100, n // 3, max(0, n - 1), n}:
            assert_same(ops.top_k(memory, grad, [(0, grad.size)], [k]),
                        oracle.top_k(memory, grad, [(0, grad.size)], [k]))


def test_wide_indices(ops, rng, wide_indices):
    memory, grad = inputs(rng, 3000, np.float32, True)
    assert_same(ops.top_k(memory, grad, [(0, grad.size)], [70]),
                oracle.top_k(memory, grad, [(0, grad.size)], [70]).astype(np.int64))
    assert_same(ops.threshold(memory, grad, [(0, grad.size)], [1])[0],
                oracle.threshold(memory, grad, [(0, grad.size)], [1])[0].astype(np.int64))


def test_equals_go_to_the_lowest_index(ops):
    grad = np.float32([1, -2, 2, 0, -2, 2])
    np.testing.assert_array_equal(ops.top_k(None, grad, [(0, grad.size)], [2]), [1, 2])
    positions = np.zeros(1, np.uint8)
    ops.chunk_max(None, grad, [(0, grad.size, 6)], positions)
    assert positions[0] == 1


def long_vectors(rng, n):
    """Vectors that a sample may misjudge: few distinct values, mostly zeros, sorted, large values in one place."""
    normal = rng.standard_normal(n)
    one_place = normal.copy()
    one_place[1000:6000] *= 1000
    return {
        "normal": normal,
        "constant": np.full(n, -3.0),
        "mostly zero": np.where(rng.random(n) < 1e-4, normal, 0),
        "few values": rng.integers(-3, 4, n),
        "ascending": np.sort(normal),
        "one place": one_place,
        "not finite": np.where(rng.random(n) < 0.01, np.nan, normal),
    }


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("least, most", [(3_000, 250_000), (300_000, 310_000)])  # what comes after a failure differs
def test_top_k_where_a_sample_misjudges(cpu_ops, rng, dtype, least, most):
    n = int(rng.integers(least, most))
    for name, x in long_vectors(rng, n).items():
        x = x.astype(dtype)
        for k in (1, 300, n // 10, n - 1):
            np.testing.assert_array_equal(cpu_ops.top_k(None, x, [(0, x.size)], [k]),
                                          oracle.top_k(None, x, [(0, x.size)], [k]), err_msg=name)


@settings(max_examples=200, deadline=None)
@given(values=st.lists(st.floats(width=32, allow_nan=True), max_size=80), data=st.data())
def test_selections_of_any_floats(values, data):
    grad = np.float32(values)
    k = data.draw(st.integers(0, len(values)))
    lam = data.draw(st.floats(0, width=32))
    chunk = data.draw(st.integers(1, 300))
    assert_same(cpu.top_k(None, grad, [(0, grad.size)], [k]), oracle.top_k(None, grad, [(0, grad.size)], [k]))
    assert_same(cpu.threshold(None, grad, [(0, grad.size)], [lam])[0],
                oracle.threshold(None, grad, [(0, grad.size)], [lam])[0])
    positions, expected = positions_for(len(grad), chunk), positions_for(len(grad), chunk)
    cpu.chunk_max(None, grad, [(0, grad.size, chunk)], positions)
    oracle.chunk_max(None, grad, [(0, grad.size, chunk)], expected)
    assert_same(positions, expected)
