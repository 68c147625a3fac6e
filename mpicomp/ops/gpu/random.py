"""Launchers of random numbers; see :mod:`..oracle.random`. Without array arguments: on the current device."""

from __future__ import annotations

import numpy as np

from ..arguments import Key, checked_key, checked_streams, dtype_name, require_counts, require_range
from ..host import index_dtype
from .base import vouched
from .cuda_runtime import INDEX, Array, blocks_for, kept_on_device, launch, xp


def stream(first: int, key: Key) -> tuple[np.generic, ...]:
    """Arguments of a kernel that draws element ``first`` and those after it: first, seed, step, worker."""
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


def random_strata(n: int, spans: list[tuple[int, int]], counts: list[int], key: Key) -> Array:
    require_counts(spans, counts, n)
    key = checked_streams(key, len(spans))
    indices = xp().empty(sum(counts), index_dtype(n))
    if indices.size:
        blocks, table = _table(spans, counts)
        name, (_, *numbers) = f"random_strata<{INDEX[dtype_name(indices.dtype)]}>", stream(0, key)
        launch("random", name, blocks_for(blocks), table, np.int64(len(spans)), *numbers, indices)
    return vouched(indices, spans, n)


@kept_on_device
def _table(spans: list[tuple[int, int]], counts: list[int]) -> tuple[int, Array]:
    """Blocks of four words in all spans; on the device as `random_strata` in random.cu reads them."""
    (starts, stops), ks = np.array(spans, np.int64).reshape(-1, 2).T, np.array(counts, np.int64)
    first, lists = (np.concatenate([[0], np.cumsum(sizes)]) for sizes in ((ks + 3) // 4, ks))
    return int(first[-1]), xp().asarray(np.concatenate([first, starts, stops - starts, ks, lists[:-1]]))
