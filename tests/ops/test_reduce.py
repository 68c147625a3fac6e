"""Element-wise operations against the oracle."""

import numpy as np
import pytest
from arrays import REALS, SIZES, assert_same, vector, with_specials

from mpicomp.ops import oracle

INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
COMBINATIONS = ("add", "multiply", "minimum", "maximum")


@pytest.mark.parametrize("name", COMBINATIONS)
@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_combine_reals(ops, rng, name, dtype):
    for n in SIZES:
        dst, src = (with_specials(rng, vector(rng, n, dtype)) for _ in range(2))
        expected = dst.copy()
        getattr(oracle, name)(expected, src)
        getattr(ops, name)(dst, src)
        if name in ("minimum", "maximum"):  # which zero wins is free
            np.testing.assert_array_equal(dst, expected)
        else:
            assert_same(dst, expected)


@pytest.mark.parametrize("name", COMBINATIONS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_combine_integers_wraps_around(ops, rng, name, dtype):
    info = np.iinfo(dtype)
    for n in (0, 1, 17, 1025):
        dst, src = rng.integers(info.min, info.max, (2, n), dtype, endpoint=True)
        expected = dst.copy()
        getattr(oracle, name)(expected, src)
        getattr(ops, name)(dst, src)
        assert_same(dst, expected)


def test_combine_with_itself(ops, rng):
    x = vector(rng, 1000, np.float32)
    expected = x + x
    ops.add(x, x)
    assert_same(x, expected)


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("factor", [0.1, -1, 0.0, float("inf")])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scale(ops, rng, dtype, factor):
    for n in SIZES:
        x = with_specials(rng, vector(rng, n, dtype))
        expected = x.copy()
        oracle.scale(expected, factor)
        ops.scale(x, factor)
        assert_same(x, expected)
