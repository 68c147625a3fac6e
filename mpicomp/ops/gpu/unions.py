"""Launchers that look at several index lists at once; see :mod:`..oracle.lists`."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from ..._util.partition import chunk_count
from ...errors import InvalidArgument
from ..arguments import dtype_name, refused_lists
from ..host import index_dtype
from .arguments import MOST_TELLING, check, kind_of, known_of, remember, require_indices
from .base import empty, zeros
from .cuda_runtime import (
    INDEX,
    MAX_BLOCKS,
    REAL,
    THREADS,
    UNION_PIECE,
    Array,
    addresses,
    blocks_for,
    launch,
    on_device,
    to_host,
    xp,
)


def union(lists: list[Array], n: int) -> Array:
    return _merged(lists, None, n, False)[0] if lists else remember(empty(0, index_dtype(n)), 0)


def add_lists(lists: list[Array], values: list[Array], n: int, filled: bool = False) -> tuple[Array, Array]:
    return _merged(lists, values, n, filled)


@on_device
def _merged(lists: list[Array], values: list[Array] | None, n: int, filled: bool) -> tuple[Array, Array]:
    """The union, and the sums where values are given; waits for the device once, to know how long they are."""
    i, t, table = _table_of(lists, values, index_dtype(n))
    room, dtype = min(n, sum(one.size for one in lists)), values[0].dtype if values else np.dtype(np.float32)
    indices, sums = empty(room, index_dtype(n)), empty(room if values else 0, dtype)
    # Few enough tiles that each can add up what those before it hold, and the host reads all counts.
    tile = UNION_PIECE * max(1, chunk_count(n, UNION_PIECE * MOST_TELLING))
    tiles = chunk_count(n, tile)
    memory = zeros(tiles + 1 + chunk_count(n, 64), np.uint64)
    counts, words = memory[: tiles + 1], memory[tiles + 1 :].view(np.uint32)
    of_lists, scalars = (table, np.int64(len(lists))), (np.int64(tile), np.int64(tiles), words, counts)
    blocks = blocks_for(sum(one.size for one in lists))
    launch("union", f"mark_lists<{i}>", blocks, *of_lists, np.int64(n), np.int32(filled), *scalars)
    target = sums if values else np.uintp(0)
    launch("union", f"write_union<{t}, {i}>", tiles if blocks else 0, *of_lists, np.int64(n), *scalars, indices, target)
    *found, wrong = to_host(counts).tolist()
    if wrong:
        raise refused_lists(n, filled)
    for one in () if filled else lists:
        if known_of(one) is None:
            remember(one, n)
    total = sum(found)
    return remember(indices[:total], n), sums[:total]


@on_device
def restrict(lists: list[Array], values: list[Array], whole: Array,
             nonzero: list[bool]) -> tuple[tuple[Array, Array], ...]:
    for one in (*lists, whole):
        require_indices(one, 2**64, ascending=True)
    check(whole, "whole", whole.dtype)
    sizes = [one.size for one in lists]
    tile = THREADS * max(1, chunk_count(max(sizes, default=0), THREADS * MAX_BLOCKS))
    tiles = list(accumulate((chunk_count(size, tile) for size in sizes), initial=0))
    i, t, table = _table_of(lists, values, whole.dtype, [*map(int, nonzero), *tiles])
    starts, total = list(accumulate(sizes, initial=0)), sum(sizes)
    indices, kept = empty(total, whole.dtype), empty(total, values[0].dtype)
    words, counts = empty(tiles[-1] * tile // 32, np.uint32), empty(tiles[-1], np.int64)
    scalars, blocks = (table, np.int64(len(lists)), np.int64(tile)), min(MAX_BLOCKS, tiles[-1])
    size = np.int64(whole.size)
    launch("union", f"find_common<{t}, {i}>", blocks, *scalars, whole, size, words, counts)
    launch("union", f"write_common<{t}, {i}>", blocks, *scalars, words, counts, indices, kept)
    found = np.add.reduceat(np.append(to_host(counts), 0), tiles[:-1])
    found[np.diff(tiles) == 0] = 0  # which has no tile
    parts = [(start, start + int(count)) for start, count in zip(starts, found, strict=False)]
    known = known_of(whole)
    below = None if known is None else known.below
    return tuple((remember(indices[begin:end], below), kept[begin:end]) for begin, end in parts)


def _table_of(lists: list[Array], values: list[Array] | None, dtype: np.dtype, more: list[int] | None = None
              ) -> tuple[str, str, Array]:
    """The types of indices and values, and the table that tells kernels where lists are (see union.cu)."""
    i, t, kinds = INDEX[dtype_name(dtype)], REAL["float32"], values or []
    for one in lists:
        check(one, "lists", dtype)
    if values is not None and len(values) != len(lists):
        raise InvalidArgument(f"values must be as many as lists, {len(lists)}, got {len(values)}")
    for one, of in zip(kinds, lists, strict=False):
        t = kind_of(one, "values", REAL)
        check(one, "values", kinds[0].dtype, of.size)
    sizes = accumulate((one.size for one in lists), initial=0)
    numbers = [*sizes, *_begins(lists), *(_begins(kinds) or [0] * len(lists)), *(more or [])]
    return i, t, xp().asarray(np.array(numbers, np.int64))


def _begins(arrays: list[Array]) -> list[int]:
    """Addresses in the device's memory; 0 for arrays of no elements."""
    there = iter(addresses([one for one in arrays if one.size]))
    return [next(there) if one.size else 0 for one in arrays]
