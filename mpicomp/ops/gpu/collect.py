"""Launchers that turn cuts into the ascending list of all they admit, and find the cut of the k largest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

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
    current_stream,
    launch,
    packs,
    to_host,
    xp,
)
from ..reference import index_dtype
from .arguments import bits_dtype, vouch

NO_CUT = np.uintp(0)
ALL = 2**62  # so many that equal a cut may be admitted
TALLY_BYTES = 8 * ((1 << DIGIT_BITS) + 2)  # of a span whose digits are counted: `tally` in top_k.cu
MOST_SPANS = 1024  # whose digits are counted at once: 16 MiB
GUESS = 32  # a list of unknown length gets room for every so many-th element, and a second pass if it is longer


def largest(m: Array, grad: Array, k: int) -> Array:
    """Ascending indices of the ``k`` largest magnitudes. Only queues: the length of the list is known."""
    if k == 0:
        return vouch(xp().empty(0, index_dtype(grad.size)), 0)
    tally, board = _zeroed(TALLY_BYTES, board_bytes(_tiles(grad)))
    return vouch(_select(m, grad, 0, 0, _radix_select(m, grad, k, tally), k, board)[0], grad.size)


def collect(m: Array, grad: Array, key: int) -> Array:
    """Ascending indices of magnitudes of at least ``key``; waits for the device, to know how many."""
    n = grad.size
    if n == 0:
        return vouch(xp().empty(0, index_dtype(n)), 0)
    room, size = min(n, n // GUESS + TILE_BYTES), board_bytes(_tiles(grad))
    indices, totals = _select(m, grad, key, n, NO_CUT, room, *_zeroed(size))
    count = int(to_host(totals).sum())
    if count > room:
        indices, _ = _select(m, grad, key, n, NO_CUT, count, *_zeroed(size))
    return vouch(indices[:count], n)


def _select(m: Array, grad: Array, key: int, ties: int, cut: Array, room: int, board: Array) -> tuple[Array, Array]:
    """Room for a list, and how many are above the key and equal to it; one block a tile."""
    t, n, bits, tiles = REAL[grad.dtype.name], grad.size, bits_dtype(grad), _tiles(grad)
    indices, totals = xp().empty(room, index_dtype(n)), xp().empty(2, np.int64)
    scalars = np.int64(n), bits.type(key), np.int64(ties)
    space = board, np.int64(tiles), np.int64(room)
    name = f"select<{t}, {INDEX[indices.dtype.name]}, false>"
    launch("collect", name, tiles, m, grad, *scalars, cut, NO_CUT, np.int64(0), *space, indices, totals)
    return indices, totals


def _tiles(grad: Array) -> int:
    return -(-grad.size * grad.dtype.itemsize // TILE_BYTES)


def _zeroed(*sizes: int) -> list[Array]:
    """Zeros of so many bytes each, by one fill; sizes are multiples of 16, but for the last."""
    ends = list(accumulate(sizes))
    memory = xp().zeros(ends[-1], np.uint8)
    return [memory[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def board_bytes(tiles: int) -> int:
    """What tiles tell each other: `Board` in collect.cu."""
    return 4 * (-(-(tiles + 1) // 4) * 4) + 2 * 16 * tiles


def _radix_select(m: Array, grad: Array, k: int, tally: Array) -> Array:
    """The k-th largest magnitude, and how many that equal it belong to the k largest, as an array on the device."""
    t, cut = REAL[grad.dtype.name], xp().empty(2, np.int64)
    for shift in _shifts(bits_dtype(grad)):
        scalars = np.int64(grad.size), np.int32(shift), np.int64(k)
        launch("top_k", f"count_digits<{t}>", blocks_for(packs(grad)), m, grad, *scalars, cut, tally)
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
    indices, ends = select_through(m, grad, spans, cuts, room)
    until = np.maximum.accumulate([0, *to_host(ends)])  # a span of no elements has no tile that says where it ends
    if until[-1] > room:
        indices, _ = select_through(m, grad, spans, cuts, int(until[-1]))
    return indices[: int(until[-1])], np.diff(until).tolist()


def select_through(m: Array, grad: Array, spans: list[tuple[int, int]], cuts: Array, room: int,
                   told: Array | None = None) -> tuple[Array, Array]:
    """Room for one list through all spans, and where that of each ends: ``told``, if given, which is zero at first."""
    tiles, table = _tile_table(grad, spans)
    ends, board = _zeroed(16 * len(spans), board_bytes(tiles))
    indices, ends = xp().empty(room, index_dtype(grad.size)), ends.view(np.int64)[: len(spans)]
    ends = ends if told is None else told
    _launch_spans(m, grad, len(spans), table, tiles, cuts, board, indices, ends)
    return indices, ends


def kth_cuts(grad: Array, spans: list[tuple[int, int]], counts: list[int]) -> Array:
    """Of each span the bits of the ``counts``-th largest magnitude, and another number: on the device. Only queues."""
    found = [xp().empty(0, np.int64)]
    for begin in range(0, len(spans), MOST_SPANS):
        some, of_each = tuple(spans[begin : begin + MOST_SPANS]), counts[begin : begin + MOST_SPANS]
        found.append(_radix_select_spans(NO_CUT, grad, some, of_each, *_zeroed(TALLY_BYTES * len(some))))
    return found[-1] if len(found) <= 2 else xp().concatenate(found)


def kth_keys(grad: Array, spans: list[tuple[int, int]], counts: list[int]) -> np.ndarray:
    """The bits of the ``counts``-th largest magnitude of each span; waits for the device."""
    return to_host(kth_cuts(grad, spans, counts))[::2]


def largest_of_spans(m: Array, grad: Array, spans: list[tuple[int, int]], counts: list[int]) -> Array:
    """Ascending indices of the ``counts`` largest magnitudes of each span, span after span. Only queues."""
    indices = xp().empty(sum(counts), index_dtype(grad.size))
    wanted = [(span, k) for span, k in zip(spans, counts, strict=True) if k]  # of none there is no smallest: no cut
    at = 0
    for begin in range(0, len(wanted), MOST_SPANS):
        some, of_each = zip(*wanted[begin : begin + MOST_SPANS], strict=True)
        tiles, table = _tile_table(grad, some, of_each)
        tallies, board = _zeroed(TALLY_BYTES * len(some), board_bytes(tiles))
        cuts, own = _radix_select_spans(m, grad, some, of_each, tallies), indices[at : at + sum(of_each)]
        _launch_spans(m, grad, len(some), table, tiles, cuts, board, own, NO_CUT)
        at += sum(of_each)
    return indices


def _radix_select_spans(m: Array, grad: Array, spans: Sequence[tuple[int, int]], counts: Sequence[int],
                        tallies: Array) -> Array:
    """Of each span the ``counts``-th largest magnitude, and how many that equal it belong to the largest."""
    t, cuts = REAL[grad.dtype.name], xp().empty(2 * len(spans), np.int64)
    pieces, table = table_of(tuple(spans), DIGIT_PIECE, tuple(counts), xp(), where(grad))
    for shift in _shifts(bits_dtype(grad)):
        scalars = table, np.int64(len(spans)), np.int32(shift)
        launch("top_k", f"count_digits_spans<{t}>", min(MAX_BLOCKS, pieces), m, grad, *scalars, cuts, tallies)
    return cuts


def _tile_table(grad: Array, spans: Sequence[tuple[int, int]], counts: Sequence[int] = ()) -> tuple[int, Array]:
    return table_of(tuple(spans), TILE_BYTES // grad.dtype.itemsize, tuple(counts), xp(), where(grad))


def _launch_spans(m: Array, grad: Array, count: int, table: Array, tiles: int, cuts: Array, board: Array,
                  indices: Array, ends: Array) -> None:
    """Lists in ``count`` spans one behind another, or one through all, which says where that of each ends."""
    scalars = np.int64(0), bits_dtype(grad).type(0), np.int64(0)
    space = board, np.int64(tiles), np.int64(indices.size)
    name = f"select<{REAL[grad.dtype.name]}, {INDEX[indices.dtype.name]}, true>"
    launch("collect", name, tiles, m, grad, *scalars, cuts, table, np.int64(count), *space, indices, ends)


def where(array: Array) -> str:
    """What tables are kept by: the array's device, and the stream that queues there now."""
    return f"{getattr(array, 'device', '')}, stream {current_stream()}"


@lru_cache(maxsize=64)  # spans are those of a model: the tables are copied to the device once
def table_of(spans: tuple[tuple[int, int], ...], length: int, counts: tuple[int, ...], module: object,
           device: str) -> tuple[int, Array]:
    """Pieces of ``length`` in all spans; on the device the first of each, starts, stops, and where lists of ``counts``
    begin, and the last ends.
    """
    starts, stops = np.array(spans, np.int64).reshape(-1, 2).T
    first = np.concatenate([[0], np.cumsum(-(-(stops - starts) // length))])
    lists = np.cumsum((0, *counts)) if counts else np.empty(0, np.int64)
    return int(first[-1]), xp().asarray(np.concatenate([first, starts, stops, lists]).astype(np.int64))
