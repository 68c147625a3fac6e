"""Random numbers that depend on what they are for, not on who draws them: Philox4x32-10, counter-based.

Element e of a stream is word e mod 4 of the block whose counter is (e div 4, step, worker), under the seed as key.
So every implementation, on any number of threads and in any order, draws the same.

Reference: Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011.
"""

from __future__ import annotations

import numpy as np

from ..arguments import Array, Bounds, Key, checked_key, checked_streams, require_counts, require_range
from .many import in_whole

MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
ROUNDS = 10


def random_words(n: int, first: int, key: Key) -> Array:
    """Elements ``[first, first + n)`` of the key's stream, uint32."""
    require_range(n, first)
    key = checked_key(key)
    blocks = np.arange(first // 4, (first + n + 3) // 4, dtype=np.uint64)
    counter = [_low(blocks), _high(blocks), *(np.full(len(blocks), one, np.uint32) for one in key[1:])]
    k0, k1 = (np.array([part & 0xFFFFFFFF], np.uint32) for part in (key.seed, key.seed >> 32))
    for _ in range(ROUNDS):
        a, b = (m * counter[at].astype(np.uint64) for m, at in zip(MULTIPLIERS, (0, 2), strict=True))
        counter = [_high(b) ^ counter[1] ^ k0, _low(b), _high(a) ^ counter[3] ^ k1, _low(a)]
        k0, k1 = k0 + WEYL[0], k1 + WEYL[1]
    return np.stack(counter, axis=1).ravel()[first % 4 : first % 4 + n]


def uniform(n: int, first: int, key: Key) -> Array:
    """Elements ``[first, first + n)`` of the key's stream as float32 in [0, 1), multiples of 2^-24."""
    return (random_words(n, first, key) >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)


def random_strata(n: int, spans: Bounds, counts: list[int], key: Key) -> Array:
    """``counts`` ascending indices in each span, one drawn uniformly from each of so many nearly equal parts.

    Part j of k in a span of m elements is ``[j m div k, (j + 1) m div k)``; its index comes from word j of the stream.
    Span s draws from the key's worker + s.
    """
    require_counts(spans, counts, n)
    seed, step, worker = checked_streams(key, len(spans))
    found = [_strata(stop - start, k, Key(seed, step, worker + s))
             for s, ((start, stop), k) in enumerate(zip(spans, counts, strict=True))]
    return in_whole(found, spans, n)


def _strata(n: int, k: int, key: Key) -> Array:
    j, parts = np.arange(k + 1, dtype=np.int64), max(1, k)
    bounds = j * (n // parts) + j * (n % parts) // parts  # j n div k, whose product may not fit
    words, sizes = random_words(k, 0, key).astype(np.uint64), np.diff(bounds).astype(np.uint64)
    steps = words * (sizes >> np.uint64(32)) + _high(words * (sizes & np.uint64(0xFFFFFFFF)))
    return bounds[:-1] + steps.astype(np.int64)


def _low(x: Array) -> Array:
    return (x & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def _high(x: Array) -> Array:
    return (x >> np.uint64(32)).astype(np.uint32)
