"""Updates that touch every element: sums of two vectors, and a memory after everything was sent."""

import numpy as np
import pytest
from arrays import REALS, SIZES, assert_same, vector, with_specials
from test_refusals import refuse

from mpicomp.errors import BufferRefused
from mpicomp.ops import oracle

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("dtype", REALS)
def test_axpby(ops, rng, dtype):
    for n in SIZES:
        x, y = (with_specials(rng, vector(rng, n, dtype)) for _ in range(2))
        for a, b in ((1, 1), (0.9, 0.1), (-1e-3, 1 / 3), (0, 1)):
            out, expected = np.full((2, n), 7, dtype)
            oracle.axpby(expected, a, x, b, y)
            ops.axpby(out, a, x, b, y)
            assert_same(out, expected)


@pytest.mark.parametrize("dtype", REALS)
def test_axpby_in_place(ops, rng, dtype):
    for n in SIZES:
        x, y, expected = vector(rng, n, dtype), vector(rng, n, dtype), np.empty(n, dtype)
        for out, left, right in ((x, x, y), (y, x, y), (x, x, x)):
            oracle.axpby(expected, 0.9, left, -0.3, right)
            ops.axpby(out, 0.9, left, -0.3, right)
            assert_same(out, expected)


@pytest.mark.parametrize("eps", [1e-8, 0.5])
@pytest.mark.parametrize("dtype", REALS)
def test_divide_by_root(ops, rng, dtype, eps):
    for n in SIZES:
        x, y = (with_specials(rng, vector(rng, n, dtype)) for _ in range(2))
        y = np.abs(y) if n % 2 else y  # negative: NaN
        expected = x.copy()
        oracle.divide_by_root(expected, y, eps)
        ops.divide_by_root(x, y, eps)
        assert_same(x, expected)


@pytest.mark.parametrize("beta", [0.1, 1.0, 0.0])
@pytest.mark.parametrize("dtype", REALS)
def test_dense_update(ops, rng, dtype, beta):
    for n in SIZES:
        memory, grad, sent = (with_specials(rng, vector(rng, n, dtype)) for _ in range(3))
        expected = memory.copy()
        oracle.dense_update(expected, grad, sent, beta)
        ops.dense_update(memory, grad, sent, beta)
        assert_same(memory, expected)


@pytest.mark.parametrize("dtype", REALS)
def test_dense_update_is_a_masked_update_at_every_index(ops, rng, dtype):
    memory, grad, sent = (vector(rng, 3000, dtype) for _ in range(3))
    expected = memory.copy()
    ops.masked_update(expected, grad, np.arange(3000, dtype=np.int32), sent, 0.3)
    ops.dense_update(memory, grad, sent, 0.3)
    assert_same(memory, expected)


def test_arguments(ops):
    x, short, wide = np.ones(10, np.float32), np.ones(9, np.float32), np.ones(10)
    refuse(lambda o, x, y: ops.axpby(o, 1, x, 1, y), short, x, x.copy(), match="out must have 10 elements, got 9")
    refuse(lambda o, x, y: ops.axpby(o, 1, x, 1, y), x, x, short, match="y must have 10 elements, got 9")
    refuse(lambda o, x, y: ops.axpby(o, 1, x, 1, y), wide, x, x, match="out must be of dtype float32, got float64")
    refuse(lambda o, x, y: ops.axpby(o, 1, x, 1, y), x, np.int32([1]), x, match="x must be of dtype float32, float64")
    refuse(lambda x, y: ops.divide_by_root(x, y, 1), x, wide, match="must be of dtype float")
    refuse(lambda m, g, s: ops.dense_update(m, g, s, 1), short, x, x, match="memory must have 10 elements, got 9")
    refuse(lambda m, g, s: ops.dense_update(m, g, s, 1), x, x.copy(), wide, match="sent must be of dtype float32")


def test_overlaps(cpu_ops):
    x, y = np.ones(101, np.float32), np.ones(100, np.float32)
    for left, right, name in ((x[:-1], y, "x"), (y, x[:-1], "y")):
        with pytest.raises(BufferRefused, match=f"out and {name}, unless they are one array, must not overlap"):
            cpu_ops.axpby(x[1:], 1, left, 1, right)
    with pytest.raises(BufferRefused, match="x and y must not overlap"):
        cpu_ops.divide_by_root(x[1:], x[:-1], 1)
    for grad, sent, name in ((x[:-1], y, "grad"), (y, x[:-1], "sent")):
        with pytest.raises(BufferRefused, match=f"memory and {name} must not overlap"):
            cpu_ops.dense_update(x[1:], grad, sent, 1)
