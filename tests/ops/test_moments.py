"""Measurements for selectors: moments of the large entries, and evenly spread samples."""

import numpy as np
import pytest
from arrays import REALS, SIZES, assert_same, vector, with_specials
from test_refusals import refuse

from mpicomp.errors import InvalidArgument
from mpicomp.ops import _cpu, cpu, oracle

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
FLOORS = (0.0, -0.0, 1e-310, 0.1, 1.0, 3.0, float("inf"))
AROUND_BLOCKS = (*SIZES, 511, 512, 513, 9001)


def assert_close(ops, memory, grad, floor):
    count, *sums = ops.moments(memory, grad, [(0, grad.size)], floor)[0]
    expected_count, *expected = oracle.moments(memory, grad, [(0, grad.size)], floor)[0]
    assert count == expected_count
    assert sums == pytest.approx(expected, rel=1e-12, abs=1e-10)


@pytest.mark.parametrize("dtype", REALS)
def test_moments(ops, rng, dtype):
    for n in (0, 1, 17, 255, 1500):
        memory, grad = vector(rng, n, dtype), vector(rng, n, dtype)
        for floor in (0.0, 1.0):
            assert_close(ops, memory, grad, floor)
            assert_close(ops, None, grad, floor)


@pytest.mark.parametrize("dtype", REALS)
def test_moments_around_blocks(cpu_ops, rng, dtype):
    for n in AROUND_BLOCKS:
        memory, grad = vector(rng, n, dtype), vector(rng, n, dtype)
        for floor in FLOORS:
            assert_close(cpu_ops, memory, grad, floor)
            assert_close(cpu_ops, None, grad, floor)


@pytest.mark.parametrize("dtype", REALS)
def test_moments_of_integers_are_exact(ops, rng, dtype):
    for n in (1, 16, 113, 1025):
        memory, grad = rng.integers(-9, 10, (2, n)).astype(dtype)
        for floor in (0, 4, 18.5):
            assert ops.moments(memory, grad, [(0, n)], floor) == oracle.moments(memory, grad, [(0, n)], floor)


@pytest.mark.parametrize("dtype", REALS)
def test_moments_of_what_is_not_finite(ops, dtype):
    for bad in (np.nan, -np.nan, np.inf, -np.inf):
        for at in (0, 999):
            grad = np.ones(1000, dtype)
            grad[at] = bad
            for floor in (0, float("inf")):  # NaN and infinity lie above every floor
                count, *sums = ops.moments(None, grad, [(0, grad.size)], floor)[0]
                assert count == (1000 if floor == 0 else 1)
                np.testing.assert_array_equal(sums, oracle.moments(None, grad, [(0, grad.size)], floor)[0][1:])


def test_moments_where_infinities_lie_below_no_floor(ops):
    """Squares beyond the range become infinite, in float64 only."""
    large = np.full(40, 1e30, np.float32)
    count, total, _, square = ops.moments(large, large, [(0, large.size)], 1.0)[0]
    assert (count, total) == (40, pytest.approx(8e31))
    assert square == pytest.approx(1.6e62)
    assert ops.moments(None, np.full(3, 1e200), [(0, np.full(3, 1e200).size)], 0.0)[0][3] == np.inf


def test_moments_give_the_same_bits_on_every_instruction_set(cpu_ops, rng):
    memory, grad = vector(rng, 100_003, np.float32), vector(rng, 100_003, np.float32)
    here = cpu.moments(memory, grad, [(0, grad.size)], 0.3)[0]
    _cpu.force_isa("baseline")
    assert here == cpu.moments(memory, grad, [(0, grad.size)], 0.3)[0]


@pytest.mark.parametrize("dtype", REALS)
def test_sample(ops, rng, dtype):
    for n in (1, 2, 100, 4099):
        grad = with_specials(rng, vector(rng, n, dtype))
        for memory in (with_specials(rng, vector(rng, n, dtype)), None):
            for stride in (1, 2, 7, 100, 5000, 2**62):
                for first in {0, n // 3, n - 1}:
                    values, expected = np.full((2, (n - 1 - first) // stride + 1), 7, dtype)
                    ops.sample(memory, grad, [(first, stride, values.size)], values)
                    oracle.sample(memory, grad, [(first, stride, expected.size)], expected)
                    assert_same(values, expected)


def test_an_empty_sample(ops):
    for n in (0, 5):
        ops.sample(None, np.ones(n, np.float32), [(3, 2, np.zeros(0, np.float32).size)], np.zeros(0, np.float32))


@pytest.mark.parametrize(
    ("first", "stride", "k"),
    [(0, 1, 101), (1, 99, 3), (100, 1, 1), (-1, 1, 2), (0, 0, 1), (0, -1, 1), (99, 2**62, 5), (2**62, 2**62, 2)],
)
def test_samples_outside(ops, first, stride, k):
    match = rf"a sample must lie in \[0, 100\), got {k} elements from {first} in steps of {stride}"
    for module in (ops, oracle):
        refuse(lambda g, v, m=module: m.sample(None, g, [(first, stride, k)], v), np.ones(100), np.zeros(k),
               match=match)


def test_arguments(ops):
    grad, values = np.ones(10, np.float32), np.zeros(3, np.float32)
    for floor in (-1.0, float("nan")):
        for module in (ops, oracle):
            with pytest.raises(InvalidArgument, match="floor must be a number >= 0, got"):
                module.moments(None, grad, [(0, grad.size)], floor)[0]
    refuse(lambda m, g: ops.moments(m, g, [(0, g.size)], 0)[0], grad[:3].copy(), grad,
           match="memory must have 10 elements, got 3")
    refuse(lambda g: ops.moments(None, g, [(0, g.size)], 0)[0], np.int32([1]),
           match="grad must be of dtype float32, float64")
    refuse(lambda m, g: ops.sample(m, g, [(0, 1, values.size)], values), grad[:3].copy(), grad,
           match="memory must have 10 elements")
    refuse(lambda g, v: ops.sample(None, g, [(0, 1, v.size)], v), grad, np.zeros(3),
           match="values must be of dtype float32")
