"""Launchers of random numbers; see :mod:`..reference.random`. Without array arguments: on the current device."""

from __future__ import annotations

import numpy as np

from ..cuda_runtime import INDEX, Array, blocks_for, launch, xp
from ..reference import index_dtype
from ..reference.base import require_count
from ..reference.random import Key, checked_key, require_range
from .arguments import vouch

__all__ = ["Key", "random_strata", "random_words", "stream", "uniform"]


def stream(first: int, key: Key) -> tuple[np.generic, ...]:
    """What a kernel needs to draw element ``first`` and those after it: first, seed, step, worker."""
    require_range(0, first)
    seed, step, worker = checked_key(key)
    return np.uint64(first), np.uint64(seed), np.uint32(step), np.uint32(worker)


def random_words(n: int, first: int, key: Key) -> Array:
    return _numbers("unsigned int", np.uint32, n, first, key)


def uniform(n: int, first: int, key: Key) -> Array:
    return _numbers("float", np.float32, n, first, key)


def _numbers(t: str, dtype: type, n: int, first: int, key: Key) -> Array:
    require_range(n, first)
    out = xp().empty(n, dtype)
    blocks = blocks_for((first % 4 + n + 3) // 4)  # one block of four words a thread
    arguments = stream(first, key)
    launch("random", f"numbers<{t}>", blocks if n else 0, np.int64(n), *arguments, out)
    return out


def random_strata(n: int, k: int, key: Key) -> Array:
    require_count(k, n)
    indices = xp().empty(k, index_dtype(n))
    _, *arguments = stream(0, key)
    name = f"random_strata<{INDEX[indices.dtype.name]}>"
    launch("random", name, blocks_for((k + 3) // 4), np.int64(n), np.int64(k), *arguments, indices)
    return vouch(indices, n)
