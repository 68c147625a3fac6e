"""Philox: known answers, the oracle's bits from any place on, and numbers that look uniform."""

from itertools import pairwise

import numpy as np
import pytest
from arrays import assert_same

from mpicomp.errors import InvalidArgument
from mpicomp.ops import oracle
from mpicomp.ops.arguments import Key

SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 127, 128, 129, 1023, 1024, 1025, 4099)  # around blocks of words and of work
FIRSTS = (0, 1, 2, 3, 4, 1021, 2**32 - 3, 2**34 - 5, 2**62 + 1)  # the counter's high half begins at 2^34
KEYS = (Key(0, 0, 0), Key(1, 2, 3), Key(2**64 - 1, 2**32 - 1, 2**32 - 1), Key(2**32, 7, 0))
STRATA = ((0, 0), (1, 0), (1, 1), (7, 3), (1000, 1000), (1000, 999), (4099, 1025), (10**9 + 7, 4099))


def any_key(rng):
    return Key(int(rng.integers(2**64, dtype=np.uint64)), *map(int, rng.integers(2**32, size=2)))


def test_known_answers(ops):
    """The vectors published with the reference implementation (Random123's kat_vectors) for a counter (0, 0, 0, 0)."""
    np.testing.assert_array_equal(
        ops.random_words(4, 0, Key(0, 0, 0)), np.uint32([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])
    )


def test_known_answer_of_a_full_counter(ops):
    """Every bit that can be set is, and the rounds are worked out again in another way."""
    first, key = 2**63 - 4, Key(2**64 - 1, 2**32 - 1, 2**32 - 1)
    assert_same(ops.random_words(3, first, key), philox_by_hand(first // 4, key)[:3])


def philox_by_hand(block, key):
    """One block in Python's own integers, as the paper writes it."""
    c, k, mask = [block & 0xFFFFFFFF, block >> 32, key.step, key.worker], [key.seed & 0xFFFFFFFF, key.seed >> 32], 2**32
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b // mask ^ c[1] ^ k[0], b % mask, a // mask ^ c[3] ^ k[1], a % mask]
        k = [(k[0] + 0x9E3779B9) % mask, (k[1] + 0xBB67AE85) % mask]
    return np.uint32(c)


@pytest.mark.parametrize("key", KEYS)
def test_words(ops, key):
    for n in SIZES:
        for first in FIRSTS:
            assert_same(ops.random_words(n, first, key), oracle.random_words(n, first, key))


def test_words_of_any_key(ops, rng):
    for _ in range(20):
        key, n, first = any_key(rng), int(rng.integers(3000)), int(rng.integers(2**40))
        assert_same(ops.random_words(n, first, tuple(key)), oracle.random_words(n, first, key))


def test_pieces_are_parts_of_the_whole(ops, rng):
    key, whole = any_key(rng), 5000
    cuts = np.unique([0, whole, *rng.integers(whole, size=9)])
    pieces = [ops.random_words(int(b - a), int(a), key) for a, b in pairwise(cuts)]
    assert_same(np.concatenate(pieces), ops.random_words(whole, 0, key))


def test_uniform(ops, rng):
    for n in SIZES:
        key, first = any_key(rng), int(rng.integers(2**40))
        assert_same(ops.uniform(n, first, key), oracle.uniform(n, first, key))


def test_uniform_is_uniform(ops):
    """Fixed numbers, hence fixed bounds: 5 standard deviations of mean, variance, neighbours, and a chi-squared."""
    n = 1 << 16
    x = ops.uniform(n, 0, Key(12, 34, 56)).astype(np.float64)
    assert 0 <= x.min() < 1e-3
    assert 1 - 1e-3 < x.max() < 1
    assert abs(x.mean() - 1 / 2) < 5 * (1 / 12 / n) ** 0.5
    assert abs(x.var() - 1 / 12) < 5 * (1 / 180 / n) ** 0.5
    centred = x - 1 / 2
    for lag in (1, 2, 3, 4, 128):
        assert abs((centred[:-lag] * centred[lag:]).mean()) < 5 / 12 / n**0.5
    counts = np.bincount((x * 256).astype(int), minlength=256)
    assert abs(((counts - n / 256) ** 2 / (n / 256)).sum() - 255) < 5 * (2 * 255) ** 0.5


def test_streams_differ(ops):
    """Seeds, steps, workers: none of them repeats another's numbers."""
    keys = [Key(5, 6, 7), Key(6, 6, 7), Key(5 + 2**32, 6, 7), Key(5, 7, 7), Key(5, 6, 8), Key(5, 7, 6)]
    words = np.concatenate([ops.random_words(100, 0, key) for key in keys])
    assert len(np.unique(words)) == len(words)


@pytest.mark.parametrize(("n", "k"), STRATA)
def test_strata(ops, rng, n, k):
    key = any_key(rng)
    indices = ops.random_strata(n, [(0, n)], [k], key)
    assert_same(indices, oracle.random_strata(n, [(0, n)], [k], key))
    starts = np.array([j * n // max(1, k) for j in range(k + 1)])
    assert np.all((starts[:-1] <= indices) & (indices < starts[1:]))


@pytest.mark.parametrize(("n", "k"), [(2**31, 17), (2**40, 3), (2**62, 5), (2**33, 1025)])
def test_strata_of_many_elements(ops, n, k):
    """Neither j n nor word times part fits 64 bits everywhere."""
    key = Key(3, 1, 4)
    words, starts = oracle.random_words(k, 0, key).tolist(), [j * n // k for j in range(k + 1)]
    expected = [start + (word * (stop - start) >> 32)
                for word, start, stop in zip(words, starts[:-1], starts[1:], strict=True)]
    for drawn in (ops.random_strata(n, [(0, n)], [k], key), oracle.random_strata(n, [(0, n)], [k], key)):
        assert_same(drawn, np.int64(expected))


def test_strata_reach_all_elements_alike(ops):
    """Each of 5 elements of 2 parts (2 and 3 long), 6000 times."""
    counts = np.zeros(5)
    for step in range(6000):
        counts[ops.random_strata(5, [(0, 5)], [2], Key(9, step, 0))] += 1
    expected = np.array([3000, 3000, 2000, 2000, 2000])
    assert np.all(np.abs(counts - expected) < 5 * expected**0.5)


@pytest.mark.parametrize(
    "key", [(-1, 0, 0), (2**64, 0, 0), (0, 2**32, 0), (0, 0, -1), (0, 0), (0, 0, 0, 0), (0.5, 0, 0), None, 7]
)
def test_bad_keys(ops, key):
    for draw in (ops, oracle):
        with pytest.raises(InvalidArgument, match=r"key must be \(seed below 2\^64, step below"):
            draw.random_words(3, 0, key)


def test_bad_ranges(ops):
    for draw in (ops, oracle):
        with pytest.raises(InvalidArgument, match="n must be >= 0, got -1"):
            draw.random_words(-1, 0, KEYS[0])
        with pytest.raises(InvalidArgument, match="first must be >= 0, got -4"):
            draw.uniform(1, -4, KEYS[0])
        with pytest.raises(InvalidArgument, match=r"k must be in \[0, 3\], got 4"):
            draw.random_strata(3, [(0, 3)], [4], KEYS[0])
