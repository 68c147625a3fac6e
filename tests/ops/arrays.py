"""Vectors that tests of the operations share, and what it means that two are the same."""

from __future__ import annotations

import numpy as np

REALS = (np.float32, np.float64)
INDICES = (np.int32, np.int64)
SIZES = (0, 1, 15, 16, 17, 111, 112, 113, 1021, 1024, 1025, 4099)  # around vectors, chunks, tiles and blocks


def vector(rng: np.random.Generator, n: int, dtype) -> np.ndarray:
    """Normal numbers of which half are rounded, so that there are ties."""
    x = rng.standard_normal(n)
    return np.where(rng.random(n) < 0.5, np.round(x, 1), x).astype(dtype)


def with_specials(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """A tenth of the entries become NaN of either sign, infinity, minus zero, or a denormal number."""
    tiny = np.finfo(x.dtype).smallest_subnormal
    specials = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, tiny, -tiny], x.dtype)
    hit = rng.random(len(x)) < 0.1
    return np.where(hit, rng.choice(specials, len(x)), x)


def some_indices(rng: np.random.Generator, n: int, dtype) -> np.ndarray:
    """About a fifth of all indices, ascending."""
    return np.flatnonzero(rng.random(n) < 0.2).astype(dtype)


def assert_same(actual: np.ndarray, expected: np.ndarray) -> None:
    """The same bits; a NaN need only be a NaN, since which one it is depends on the order of operands."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.dtype.kind == "f":
        both_nan = np.isnan(actual) & np.isnan(expected)
        bits = f"u{actual.itemsize}"
        actual, expected = (np.where(both_nan, 0, x.view(bits)) for x in (actual, expected))
    np.testing.assert_array_equal(actual, expected)
