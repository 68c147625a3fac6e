"""Counting what is not finite, and norms."""

import numpy as np
import pytest
from arrays import REALS, SIZES, vector, with_specials

from mpicomp.ops import _cpu, cpu, oracle


@pytest.mark.parametrize("dtype", REALS)
def test_count_nonfinite(ops, rng, dtype):
    for n in SIZES:
        for x in (vector(rng, n, dtype), with_specials(rng, vector(rng, n, dtype))):
            assert tuple(ops.count_nonfinite(x)) == oracle.count_nonfinite(x)


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
