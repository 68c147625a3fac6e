"""Counting what is not finite, and norms."""

import numpy as np
import pytest
from arrays import REALS, SIZES, vector, with_specials

from mpicomp.errors import InvalidArgument
from mpicomp.ops import _cpu, cpu, oracle


@pytest.mark.parametrize("dtype", REALS)
def test_count_nonfinite(ops, rng, dtype):
    for n in SIZES:
        for x in (vector(rng, n, dtype), with_specials(rng, vector(rng, n, dtype))):
            assert tuple(ops.count_nonfinite(x)) == oracle.count_nonfinite(x)


@pytest.mark.parametrize("has_memory", [False, True])
@pytest.mark.parametrize("dtype", REALS)
def test_count_beyond(ops, rng, dtype, has_memory):
    for n in SIZES:
        for grad in (vector(rng, n, dtype), with_specials(rng, vector(rng, n, dtype))):
            memory = vector(rng, n, dtype) if has_memory else None
            u = grad if memory is None else memory + grad
            own = [float(x) for x in np.abs(u[:1]) if 0 < x < np.inf]
            for limit in (0.5, 1e30, np.inf, *own):
                assert ops.count_beyond(memory, grad, limit) == oracle.count_beyond(memory, grad, limit)


def test_count_beyond_counts_what_adds_up_to_infinity(ops):
    half = np.full(70_001, 3e38, np.float32)
    assert (ops.count_beyond(None, half, np.inf), ops.count_beyond(half, half, np.inf)) == (0, half.size)
    assert ops.count_beyond(half, -half, 1e30) == 0


@pytest.mark.parametrize("limit", [0.0, -1.0, np.nan])
def test_count_beyond_refuses_a_limit_that_is_none(ops, limit):
    with pytest.raises(InvalidArgument, match="limit must be a number above 0"):
        ops.count_beyond(None, np.ones(3, np.float32), limit)


@pytest.mark.parametrize("dtype", REALS)
def test_squared_norm(ops, rng, dtype):
    for n in SIZES:
        x = vector(rng, n, dtype)
        assert ops.squared_norm(x) == pytest.approx(oracle.squared_norm(x), rel=1e-12)


def test_squared_norm_gives_the_same_bits_on_every_instruction_set(cpu_ops, rng):
    x = vector(rng, 100_003, np.float32)
    here = cpu.squared_norm(x)
    _cpu.force_isa("baseline")
    assert here == cpu.squared_norm(x)
