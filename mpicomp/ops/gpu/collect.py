"""Launchers that turn cuts into the ascending list of all they admit, and find the cut of the k largest."""

from __future__ import annotations

from collections.abc import Sequence
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
ALL = 2**62  # so many that equal a cut may be admitted
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

def collect_spans(m: Array, grad: Array, spans: list[tuple[int, int]], keys: list[int]) -> tuple[Array, list[int]]:
    """Ascending indices of magnitudes of at least its own of ``keys`` in each span, span after span, and how many each
    has; waits for the device, to know.
    """
    n = sum(stop - start for start, stop in spans)
    cuts = xp().asarray(np.array([[key, ALL] for key in keys], np.int64).ravel())
    room = min(n, n // GUESS + TILE_BYTES)
    indices, ends = _select_through(m, grad, spans, cuts, room)
    until = np.maximum.accumulate([0, *to_host(ends)])  # a span of no elements has no tile that says where it ends
    if until[-1] > room:
        indices, _ = _select_through(m, grad, spans, cuts, int(until[-1]))
    return indices[: int(until[-1])], np.diff(until).tolist()


def _select_through(m: Array, grad: Array, spans: list[tuple[int, int]], cuts: Array, room: int) -> tuple[Array, Array]:
    """Room for one list through all spans, and where that of each ends."""
    indices, ends = xp().empty(room, index_dtype(grad.size)), xp().zeros(len(spans), np.int64)
    _launch_spans(m, grad, tuple(spans), (), cuts, indices, ends)
    return indices, ends


def kth_keys(grad: Array, spans: list[tuple[int, int]], counts: list[int]) -> np.ndarray:
    """The bits of the ``counts``-th largest magnitude of each span; waits for the device."""
    found = [np.empty(0, np.int64)]
    for begin in range(0, len(spans), MOST_SPANS):
        some, of_each = tuple(spans[begin : begin + MOST_SPANS]), counts[begin : begin + MOST_SPANS]
        found.append(to_host(_radix_select_spans(NO_CUT, grad, some, of_each))[::2])
    return np.concatenate(found)


def largest_of_spans(m: Array, grad: Array, spans: list[tuple[int, int]], counts: list[int]) -> Array:
    """Ascending indices of the ``counts`` largest magnitudes of each span, span after span. Only queues."""
    indices = xp().empty(sum(counts), index_dtype(grad.size))
    wanted = [(span, k) for span, k in zip(spans, counts, strict=True) if k]  # of none there is no smallest: no cut
    at = 0
    for begin in range(0, len(wanted), MOST_SPANS):
        some, of_each = zip(*wanted[begin : begin + MOST_SPANS], strict=True)
        own = indices[at : at + sum(of_each)]
        _launch_spans(m, grad, some, of_each, _radix_select_spans(m, grad, some, of_each), own, NO_CUT)
        at += sum(of_each)
    return indices


def _radix_select_spans(m: Array, grad: Array, spans: tuple[tuple[int, int], ...], counts: Sequence[int]) -> Array:
    """Of each span the ``counts``-th largest magnitude, and how many that equal it belong to the largest."""
    t, count = REAL[grad.dtype.name], np.int64(len(spans))
    cuts = xp().asarray(np.array([[0, k] for k in counts], np.int64).ravel())
    pieces, table = table_of(spans, DIGIT_PIECE, (), xp(), where(grad))
    digits = xp().zeros(len(spans) << DIGIT_BITS, np.uint64)
    for shift in _shifts(bits_dtype(grad)):
        name, blocks = f"count_digits_spans<{t}>", min(MAX_BLOCKS, pieces)
        launch("top_k", name, blocks, m, grad, table, count, np.int32(shift), cuts, digits)
        launch("top_k", "choose_digit", len(spans), cuts, digits)
    return cuts


def _launch_spans(m: Array, grad: Array, spans: tuple[tuple[int, int], ...], counts: tuple[int, ...], cuts: Array,
                  indices: Array, ends: Array) -> None:
    """Lists of ``counts`` indices one behind another, or one through all spans, which says where that of each ends."""
    bits = bits_dtype(grad)
    tiles, table = table_of(spans, TILE_BYTES // grad.dtype.itemsize, counts, xp(), where(grad))
    scalars, board = (np.int64(0), bits.type(0), np.int64(0)), xp().zeros(board_bytes(tiles), np.uint8)
    space = board, np.int64(tiles), np.int64(indices.size)
    name = f"select<{REAL[grad.dtype.name]}, {INDEX[indices.dtype.name]}, true>"
    launch("collect", name, tiles, m, grad, *scalars, cuts, table, np.int64(len(spans)), *space, indices, ends)


def where(array: Array) -> str:
    """The array's device, as what tables are kept by."""
    return str(getattr(array, "device", ""))


@lru_cache(maxsize=64)  # spans are those of a model: the tables are copied to the device once
def table_of(spans: tuple[tuple[int, int], ...], length: int, counts: tuple[int, ...], module: object,
           device: str) -> tuple[int, Array]:
    """Pieces of ``length`` in all spans; on the device the first of each, starts, stops, and where lists begin."""
    starts, stops = np.array(spans, np.int64).reshape(-1, 2).T
    first = np.concatenate([[0], np.cumsum(-(-(stops - starts) // length))])
    lists = np.cumsum((0, *counts[:-1])) if counts else np.empty(0, np.int64)
    return int(first[-1]), xp().asarray(np.concatenate([first, starts, stops, lists]).astype(np.int64))
