"""Half precision: all 65 536 bit patterns one way, the difficult neighbourhoods the other way."""

import numpy as np
import pytest
from arrays import assert_same, vector, with_specials

from mpicomp.ops import oracle

KINDS = ("float16", "bfloat16")
ALL_HALVES = np.arange(2**16, dtype=np.uint16)


def is_nan(halves: np.ndarray, kind: str) -> np.ndarray:
    infinity = 0x7C00 if kind == "float16" else 0x7F80
    return (halves & 0x7FFF) > infinity


@pytest.mark.parametrize("kind", KINDS)
def test_widen_every_bit_pattern(ops, kind):
    wide, expected = np.empty((2, 2**16), np.float32)
    ops.widen(wide, ALL_HALVES, kind)
    oracle.widen(expected, ALL_HALVES, kind)
    assert_same(wide, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_widen_and_scale_at_any_length(ops, rng, kind):
    """Long results are written past the caches; the lines at both ends of one are shared with others."""
    for n in (0, 1, 1000, 2**18 + 9):
        halves = rng.integers(0, 2**16, n, np.uint16)
        wide, expected = np.full((2, n + 2), 7, np.float32)
        for factor in (1.0, 1 / 3):
            ops.widen(wide[1:-1], halves, kind, factor)
            oracle.widen(expected[1:-1], halves, kind, factor)
            assert_same(wide, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_narrow_gives_back_what_was_widened(ops, kind):
    wide, back = np.empty(2**16, np.float32), np.empty(2**16, np.uint16)
    oracle.widen(wide, ALL_HALVES, kind)
    ops.narrow(back, wide, kind)
    nan = is_nan(ALL_HALVES, kind)
    assert is_nan(back[nan], kind).all()
    np.testing.assert_array_equal(back[~nan], ALL_HALVES[~nan])


def difficult_floats(rng, kind):
    """Ties between two halves and their neighbours, of every exponent; and any bits at all."""
    wide = np.empty(2**16, np.float32)
    oracle.widen(wide, ALL_HALVES, kind)
    with np.errstate(all="ignore"):
        ties = ((wide[:-1].astype(np.float64) + wide[1:]) / 2).astype(np.float32)
        neighbours = np.concatenate([np.nextafter(ties, np.float32(s * np.inf)) for s in (-1, 1)])
    anything = rng.integers(0, 2**32, 20_000, np.uint32).view(np.float32)
    limits = np.float32([65503.9, 65519.996, 65520, 3.4028235e38, 2**-24, 2**-25, 2.0**-25 * 1.0001, 2**-14])
    every = np.concatenate([ties, neighbours, anything, limits, -limits])
    return rng.permutation(every)[:50_001]


@pytest.mark.parametrize("kind", KINDS)
def test_narrow_rounds_to_nearest_even(ops, rng, kind):
    wide = difficult_floats(rng, kind)
    narrow, expected = np.empty((2, len(wide)), np.uint16)
    ops.narrow(narrow, wide, kind)
    oracle.narrow(expected, wide, kind)
    nan = np.isnan(wide)
    assert is_nan(narrow[nan], kind).all()
    np.testing.assert_array_equal(narrow[~nan], expected[~nan])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_add_widened(ops, rng, kind):
    for n in (0, 1, 17, 1025):
        dst = with_specials(rng, vector(rng, n, np.float32))
        src = rng.integers(0, 2**16, n, np.uint16)
        expected = dst.copy()
        oracle.add_widened(expected, src, kind)
        ops.add_widened(dst, src, kind)
        assert_same(dst, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [0, 1, 3, 4, 7, 8, 9, 1027, 6001])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_any_length_at_any_place(ops, rng, kind, n):
    """Kernels take eight at a time where both arrays begin at a multiple of 16 bytes, else one."""
    for first in (0, 1, 8):
        wide, halves = np.zeros(n + 9, np.float32), rng.integers(0, 2**16, n + 9, np.uint16)
        wide[:] = with_specials(rng, vector(rng, n + 9, np.float32))
        part = slice(first, first + n)
        for name, target, origin in (("widen", wide, halves), ("add_widened", wide, halves), ("narrow", halves, wide)):
            expected, given = target.copy(), target.copy()
            getattr(oracle, name)(expected[part], origin[part], kind)
            getattr(ops, name)(given[part], origin[part], kind)
            if name == "narrow":
                nan = np.isnan(wide)
                given[nan] = expected[nan] = 0
            assert_same(given, expected)
