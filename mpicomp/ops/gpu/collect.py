"""Launchers that turn a cut into the ascending list of all it admits, and find the cut of the k largest."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..cuda_runtime import (
    DIGIT_BITS,
    DIGIT_PIECE,
    INDEX,
    MAX_BLOCKS,
    REAL,
    TILE_BYTES,
    Array,
    blocks_for,
    launch,
    packs,
    to_host,
    xp,
)
from ..reference import index_dtype
from .arguments import bits_dtype, vouch

NO_CUT = np.uintp(0)
MOST_SPANS = 1024  # whose digits are counted at once: 16 MiB
GUESS = 32  # a list of unknown length gets room for every so many-th element, and a second pass if it is longer


def largest(m: Array, grad: Array, k: int) -> Array:
    """Ascending indices of the ``k`` largest magnitudes. Only queues: the length of the list is known."""
    if k == 0:
        return vouch(xp().empty(0, index_dtype(grad.size)), 0)
    return vouch(_select(m, grad, 0, 0, _radix_select(m, grad, k), k)[0], grad.size)


def collect(m: Array, grad: Array, key: int) -> Array:
    """Ascending indices of magnitudes of at least ``key``; waits for the device, to know how many."""
    n = grad.size
    if n == 0:
        return vouch(xp().empty(0, index_dtype(n)), 0)
    room = min(n, n // GUESS + TILE_BYTES)
    indices, totals = _select(m, grad, key, n, NO_CUT, room)
    count = int(to_host(totals).sum())
    if count > room:
        indices, _ = _select(m, grad, key, n, NO_CUT, count)
    return vouch(indices[:count], n)


def _select(m: Array, grad: Array, key: int, ties: int, cut: Array, room: int) -> tuple[Array, Array]:
    """Room for a list, and how many are above the key and equal to it; one block a tile."""
    t, n, bits = REAL[grad.dtype.name], grad.size, bits_dtype(grad)
    tiles = -(-n * grad.dtype.itemsize // TILE_BYTES)
    board = xp().zeros(board_bytes(tiles), np.uint8)
    indices, totals = xp().empty(room, index_dtype(n)), xp().empty(2, np.int64)
    scalars = np.int64(n), bits.type(key), np.int64(ties)
    space = board, np.int64(tiles), np.int64(room)
    name = f"select<{t}, {INDEX[indices.dtype.name]}, false>"
    launch("collect", name, tiles, m, grad, *scalars, cut, NO_CUT, np.int64(0), *space, indices, totals)
    return indices, totals


def board_bytes(tiles: int) -> int:
    """What tiles tell each other: `Board` in collect.cu."""
    return 4 * (-(-(tiles + 1) // 4) * 4) + 2 * 16 * tiles


def _radix_select(m: Array, grad: Array, k: int) -> Array:
    """The k-th largest magnitude, and how many that equal it belong to the k largest, as an array on the device."""
    t, bits = REAL[grad.dtype.name], bits_dtype(grad)
    cut, counts = xp().asarray(np.array([0, k], np.int64)), xp().zeros(1 << DIGIT_BITS, np.uint64)
    for shift in _shifts(bits):
        scalars = np.int64(grad.size), np.int32(shift)
        launch("top_k", f"count_digits<{t}>", blocks_for(packs(grad)), m, grad, *scalars, cut, counts)
        launch("top_k", "choose_digit", 1, cut, counts)
    return cut


def _shifts(bits: np.dtype) -> range:
    """Where the digits of a magnitude begin, the highest first."""
    return range((8 * bits.itemsize - 1) // DIGIT_BITS * DIGIT_BITS, -1, -DIGIT_BITS)


# ---- the same in many spans, each with a cut of its own

def largest_of_spans(m: Array, grad: Array, spans: list[tuple[int, int]], counts: list[int]) -> Array:
    """Ascending indices of the ``counts`` largest magnitudes of each span, span after span. Only queues."""
    indices = xp().empty(sum(counts), index_dtype(grad.size))
    wanted = [(span, k) for span, k in zip(spans, counts, strict=True) if k]  # of none there is no smallest: no cut
    at = 0
    for begin in range(0, len(wanted), MOST_SPANS):
        some, of_each = zip(*wanted[begin : begin + MOST_SPANS], strict=True)
        _select_spans(m, grad, some, of_each, indices[at : at + sum(of_each)])
        at += sum(of_each)
    return indices


def _select_spans(m: Array, grad: Array, spans: tuple[tuple[int, int], ...], counts: tuple[int, ...],
                  indices: Array) -> None:
    t, bits, count = REAL[grad.dtype.name], bits_dtype(grad), np.int64(len(spans))
    where = xp(), str(getattr(grad, "device", ""))
    cuts = xp().asarray(np.array([[0, k] for k in counts], np.int64).ravel())
    digits, (pieces, table) = xp().zeros(len(spans) << DIGIT_BITS, np.uint64), _table(spans, DIGIT_PIECE, (), *where)
    for shift in _shifts(bits):
        name, blocks = f"count_digits_spans<{t}>", min(MAX_BLOCKS, pieces)
        launch("top_k", name, blocks, m, grad, table, count, np.int32(shift), cuts, digits)
        launch("top_k", "choose_digit", len(spans), cuts, digits)
    tiles, table = _table(spans, TILE_BYTES // grad.dtype.itemsize, counts, *where)
    scalars, board = (np.int64(0), bits.type(0), np.int64(0)), xp().zeros(board_bytes(tiles), np.uint8)
    space = board, np.int64(tiles), np.int64(indices.size)
    name = f"select<{t}, {INDEX[indices.dtype.name]}, true>"
    launch("collect", name, tiles, m, grad, *scalars, cuts, table, count, *space, indices, NO_CUT)


@lru_cache(maxsize=64)  # spans are those of a model: the tables are copied to the device once
def _table(spans: tuple[tuple[int, int], ...], length: int, counts: tuple[int, ...], module: object,
           device: str) -> tuple[int, Array]:
    """Pieces of ``length`` in all spans; on the device the first of each, starts, stops, and where lists begin."""
    starts, stops = np.array(spans, np.int64).reshape(-1, 2).T
    first = np.concatenate([[0], np.cumsum(-(-(stops - starts) // length))])
    lists = np.cumsum((0, *counts[:-1])) if counts else np.empty(0, np.int64)
    return int(first[-1]), xp().asarray(np.concatenate([first, starts, stops, lists]).astype(np.int64))
