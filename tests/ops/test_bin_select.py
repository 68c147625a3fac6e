"""Selection by bins against the oracle."""

import numpy as np
import pytest
from arrays import REALS, SIZES, assert_same, vector, with_specials
from hypothesis import given, settings
from hypothesis import strategies as st
from test_refusals import refuse

from mpicomp.errors import InvalidArgument
from mpicomp.ops import cpu, oracle

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
LENGTHS = (1, 2, 7, 15, 16, 17, 50, 100, 256, 500, 1000, 1023, 1024, 1025, 3000, 2**40)


def assert_same_selection(ops, memory, grad, lengths):
    for length in lengths:
        assert_same(ops.bin_select(memory, grad, [(0, grad.size)], length),
                    oracle.bin_select(memory, grad, [(0, grad.size)], length))


@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("dtype", REALS)
def test_bin_select(ops, rng, dtype, has_memory):
    for n in (0, 1, 31, 32, 33, 113, 1500):
        memory = 3 * with_specials(rng, vector(rng, n, dtype)) if has_memory else None
        assert_same_selection(ops, memory, vector(rng, n, dtype), (1, 17, 50) if n < 100 else (50, 499, 2**40))


@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("dtype", REALS)
def test_around_blocks(cpu_ops, rng, dtype, has_memory):
    for n in (*SIZES, 9001):
        memory = 3 * vector(rng, n, dtype) if has_memory else None
        assert_same_selection(cpu_ops, memory, vector(rng, n, dtype), LENGTHS)


@pytest.mark.parametrize("dtype", REALS)
def test_specials(cpu_ops, rng, dtype):
    for share in (1, 0.02):  # few of them: most bins have none
        memory, grad = (vector(rng, 5000, dtype) for _ in range(2))
        for x in (memory, grad):
            np.copyto(x, with_specials(rng, x), where=rng.random(5000) < share)
        assert_same_selection(cpu_ops, memory, grad, LENGTHS)


def test_wide_indices(ops, rng, wide_indices):
    grad = vector(rng, 300, np.float32)
    assert_same(ops.bin_select(None, grad, [(0, grad.size)], 50),
                oracle.bin_select(None, grad, [(0, grad.size)], 50).astype(np.int64))


def test_a_bin_in_which_all_reach_the_peak(ops):
    grad = np.ones(2500, np.float32)
    for length in (50, 1024, 2500):
        assert_same(ops.bin_select(None, grad, [(0, grad.size)], length), np.arange(2500, dtype=np.int32))


@settings(max_examples=200, deadline=None)
@given(values=st.lists(st.floats(width=32, allow_nan=True), max_size=80), length=st.integers(1, 100), data=st.data())
def test_any_floats(values, length, data):
    memory = data.draw(st.lists(st.floats(width=32), min_size=len(values), max_size=len(values)))
    memory, grad = np.float32(memory), np.float32(values)
    assert_same(cpu.bin_select(memory, grad, [(0, grad.size)], length),
                oracle.bin_select(memory, grad, [(0, grad.size)], length))


def test_arguments(ops):
    grad = np.ones(10, np.float32)
    for length in (0, -1):
        for module in (ops, oracle):
            with pytest.raises(InvalidArgument, match=f"length must be at least 1, got {length}"):
                module.bin_select(None, grad, [(0, grad.size)], length)
    refuse(lambda m, g: ops.bin_select(m, g, [(0, g.size)], 5), grad[:3].copy(), grad,
           match="memory must have 10 elements, got 3")
    refuse(lambda g: ops.bin_select(None, g, [(0, g.size)], 5), np.int32([1]),
           match="grad must be of dtype float32, float64")
