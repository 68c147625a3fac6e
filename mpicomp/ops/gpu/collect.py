"""Launchers that turn cuts into the ascending list of all they admit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from ..arguments import dtype_name
from ..host import index_dtype
from .arguments import bits_dtype, remember
from .cuda_runtime import (
    INDEX,
    REAL,
    TILE_BYTES,
    Array,
    kept_on_device,
    launch,
    to_host,
    xp,
)

NO_CUT = np.uintp(0)  # a null pointer in a launch
GUESS = 32  # a list of unknown length gets room for every so many-th element, and a second pass if it is longer
SELECT_BLOCKS = 1024  # take tiles in turn: no device has as many at a time


def collect_vector(m: Array, grad: Array, key: int) -> Array:
    """Ascending indices of magnitudes of at least ``key``; waits for the device, to know how many."""
    n = grad.size
    if n == 0:
        return remember(xp().empty(0, index_dtype(n)), 0)
    room = min(n, n // GUESS + TILE_BYTES)
    indices, total = _select(m, grad, key, room)
    count = int(to_host(total)[0])
    if count > room:
        indices, _ = _select(m, grad, key, count)
    return remember(indices[:count], n)


def _select(m: Array, grad: Array, key: int, room: int) -> tuple[Array, Array]:
    """Room for a list, and how many pass."""
    n, tiles = grad.size, tiles_of(grad)
    indices, total, board = xp().empty(room, index_dtype(n)), xp().empty(1, np.int64), zeroed(board_bytes(tiles))[0]
    scalars, no_spans = (np.int64(n), bits_dtype(grad).type(key)), (NO_CUT, NO_CUT, np.int64(0))
    space, name = (board, np.int64(tiles), np.int64(room)), f"select<{types_of(grad, indices)}, false>"
    launch("collect", name, select_blocks(tiles), m, grad, *scalars, *no_spans, *space, indices, total)
    return indices, total


def types_of(grad: Array, indices: Array) -> str:
    """Types of elements and indices, in the names of kernels."""
    return f"{REAL[dtype_name(grad.dtype)]}, {INDEX[dtype_name(indices.dtype)]}"


def tiles_of(grad: Array) -> int:
    return -(-grad.size * grad.dtype.itemsize // TILE_BYTES)


def select_blocks(tiles: int) -> int:
    return min(SELECT_BLOCKS, tiles)


def zeroed(*sizes: int) -> list[Array]:
    """Zeros of so many bytes each, by one fill; sizes are multiples of 16, but for the last."""
    ends = list(accumulate(sizes))
    memory = xp().zeros(ends[-1], np.uint8)
    return [memory[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def board_bytes(tiles: int) -> int:
    """Bytes of the counts that tiles exchange: `Board` in collect.cu."""
    return 16 + 2 * 8 * tiles


# ---- the same in many spans, each with a cut of its own

def collect_spans(m: Array, grad: Array, spans: list[tuple[int, int]], keys: list[int]) -> tuple[Array, list[int]]:
    """Ascending indices of magnitudes of at least its own of ``keys`` in each span, span after span, and how many each
    has; waits for the device, to know.
    """
    n = sum(stop - start for start, stop in spans)
    cuts = xp().asarray(np.array(keys, np.int64))
    room = min(n, n // GUESS + TILE_BYTES)
    indices, ends = select_through(m, grad, spans, cuts, room)
    until = np.maximum.accumulate([0, *to_host(ends)])  # a span of no elements has no tile that says where it ends
    if until[-1] > room:
        indices, _ = select_through(m, grad, spans, cuts, int(until[-1]))
    return indices[: int(until[-1])], np.diff(until).tolist()


def select_through(m: Array, grad: Array, spans: list[tuple[int, int]], cuts: Array, room: int,
                   told: Array | None = None) -> tuple[Array, Array]:
    """Room for one list through all spans, and where that of each ends: ``told``, if given, which is zero at first."""
    tiles, table = tile_table(grad, spans)
    own, board = zeroed(16 * len(spans), board_bytes(tiles))
    ends = own.view(np.int64)[: len(spans)] if told is None else told
    indices = xp().empty(room, index_dtype(grad.size))
    scalars, space = (np.int64(0), bits_dtype(grad).type(0)), (board, np.int64(tiles), np.int64(room))
    name, count = f"select<{types_of(grad, indices)}, true>", np.int64(len(spans))
    launch("collect", name, select_blocks(tiles), m, grad, *scalars, cuts, table, count, *space, indices, ends)
    return indices, ends


def tile_table(grad: Array, spans: Sequence[tuple[int, int]], counts: Sequence[int] = ()) -> tuple[int, Array]:
    return table_of(spans, TILE_BYTES // grad.dtype.itemsize, counts)


@kept_on_device
def table_of(spans: Sequence[tuple[int, int]], length: int, counts: Sequence[int] = ()) -> tuple[int, Array]:
    """Pieces of ``length`` in all spans; on the device the first of each, starts, stops, and where lists of ``counts``
    begin, and the last ends.
    """
    starts, stops = np.array(spans, np.int64).reshape(-1, 2).T
    first = np.concatenate([[0], np.cumsum(-(-(stops - starts) // length))])
    lists = np.cumsum((0, *counts)) if counts else np.empty(0, np.int64)
    return int(first[-1]), xp().asarray(np.concatenate([first, starts, stops, lists]).astype(np.int64))
