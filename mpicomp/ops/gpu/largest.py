"""Launchers that find the k largest, of a vector or of each of many spans.

Long vectors are read once: a guess from a sample admits the k largest and few others, these candidates are kept, and
the digits of the k-th largest are counted among them. Whether the guess was right, and all had room, the device alone
knows: if not, the same launches go over the vector, once for every digit and once for the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from typing import NamedTuple

import numpy as np

from ..arguments import dtype_name
from ..host import index_dtype
from .arguments import bits_dtype, remember
from .collect import NO_CUT, board_bytes, select_blocks, table_of, tile_table, tiles_of, types_of, zeroed
from .cuda_runtime import (
    DIGIT_BITS,
    DIGIT_PIECE,
    MAX_BLOCKS,
    REAL,
    SAMPLE,
    Array,
    blocks_for,
    kept_on_device,
    launch,
    packs,
    to_host,
    xp,
)

TALLY_BYTES = 8 * ((1 << DIGIT_BITS) + 2)  # of a span whose digits are counted: `tally` in top_k.cu
MOST_SPANS = 1024  # whose digits are counted at once: 16 MiB
LONG = 1 << 22  # elements from which on a pass less is worth two launches more
SAMPLED = 32 * SAMPLE  # elements of the shortest span that is sampled: a sample reads 8 times what it needs
KEPT_SHARE = 8  # room for at most every so many-th element: a candidate costs 28 bytes, a float32 element not read 12


class Kept(NamedTuple):
    """Candidates on the device, as kept.cuh has them: the arguments of kernels that may read them."""

    room: np.int64 = np.int64(0)
    areas: Array = NO_CUT
    values: Array = NO_CUT
    at: Array = NO_CUT
    found: Array = NO_CUT


NOTHING = Kept()


def largest_of_vector(m: Array, grad: Array, k: int) -> Array:
    """Ascending indices of the ``k`` largest magnitudes. Only queues: the length of the list is known."""
    indices = xp().empty(k, index_dtype(grad.size))
    if k == 0:
        return remember(indices, 0)
    n, tiles, t = np.int64(grad.size), tiles_of(grad), REAL[dtype_name(grad.dtype)]
    wanted, room = guessed(grad.size, k) if grad.size >= LONG else (0, 0)
    tally, board, *more = zeroed(TALLY_BYTES, board_bytes(tiles), *((board_bytes(tiles), 16) if room else ()))
    kept, none = NOTHING, (NO_CUT, np.int64(0))
    if room:
        kept = _room_for(grad, room, NO_CUT, more[1], 1)
        guesses, scalars = xp().empty(1, np.int64), (n, np.int64(wanted), kept.room)
        launch("top_k", f"guess<{t}>", 1, m, grad, *scalars, NO_CUT, NO_CUT, guesses)
        _keep(m, grad, guesses, *none, more[0], tiles, kept)
    cut, blocks = xp().empty(2, np.int64), blocks_for(packs(grad))
    for shift in _shifts(bits_dtype(grad)):
        digit = n, np.int32(shift), np.int64(k)
        launch("top_k", f"count_digits<{t}>", blocks, m, grad, *digit, cut, tally, kept.room, kept.values, kept.found)
    _select_largest(m, grad, cut, *none, board, tiles, indices, kept)
    return remember(indices, grad.size)


def guessed(n: int, k: int) -> tuple[int, int]:
    """Rank in a sample of ``n`` elements of a magnitude that the ``k`` largest pass, and room for all that
    do; no room if a guess saves nothing.
    """
    wanted = _at_most(SAMPLE * k / n)
    room = -(-_at_most(wanted) * n // SAMPLE // 4) * 4  # the next begin at 16 bytes
    return wanted, room if room <= n // KEPT_SHARE else 0


def _at_most(mean: float) -> int:
    """Bound that a number of hits with this mean almost never exceeds: four standard deviations and some."""
    return ceil(mean + 4 * sqrt(mean) + 8)


def _room_for(grad: Array, room: int, areas: Array, found: Array, count: int) -> Kept:
    """Not yet written, but for ``found``, which is zero."""
    values, at = xp().empty(room, grad.dtype), xp().empty(room, index_dtype(grad.size))
    return Kept(np.int64(room), areas, values, at, found.view(np.int64)[:count])


def _keep(m: Array, grad: Array, guesses: Array, table: Array, count: np.int64, board: Array, tiles: int,
          kept: Kept) -> None:
    name = f"keep<{types_of(grad, kept.at)}, {_many(count)}>"
    scalars, space = (np.int64(grad.size), guesses, table, count), (board, np.int64(tiles))
    launch("collect", name, select_blocks(tiles), m, grad, *scalars, *space, *kept)


def _select_largest(m: Array, grad: Array, cuts: Array, table: Array, count: np.int64, board: Array, tiles: int,
                    indices: Array, kept: Kept) -> None:
    name = f"select_largest<{types_of(grad, indices)}, {_many(count)}>"
    scalars, space = (np.int64(grad.size), cuts, table, count), (board, np.int64(tiles), np.int64(indices.size))
    launch("collect", name, select_blocks(tiles), m, grad, *scalars, *space, indices, *kept)


def _many(count: np.int64) -> str:
    return "true" if count else "false"


def _shifts(bits: np.dtype) -> range:
    """First bit of each digit of a magnitude, the highest first."""
    return range((8 * bits.itemsize - 1) // DIGIT_BITS * DIGIT_BITS, -1, -DIGIT_BITS)


# ---- the same in many spans, each with a cut of its own

def kth_keys(grad: Array, spans: list[tuple[int, int]], counts: list[int]) -> np.ndarray:
    """The bits of the ``counts``-th largest magnitude of each span; waits for the device."""
    return to_host(kth_cuts(grad, spans, counts))[::2]


def kth_cuts(grad: Array, spans: list[tuple[int, int]], counts: list[int]) -> Array:
    """The same bits, each with another number behind it: on the device. Only queues."""
    found = [xp().empty(0, np.int64)]
    for begin in range(0, len(spans), MOST_SPANS):
        some, of_each = tuple(spans[begin : begin + MOST_SPANS]), counts[begin : begin + MOST_SPANS]
        tallies = zeroed(TALLY_BYTES * len(some))[0]
        found.append(_radix_select_spans(NO_CUT, grad, some, of_each, tallies, NOTHING))
    return found[-1] if len(found) <= 2 else xp().concatenate(found)


def largest_of_spans(m: Array, grad: Array, spans: list[tuple[int, int]], counts: list[int]) -> Array:
    """Ascending indices of the ``counts`` largest magnitudes of each span, span after span. Only queues."""
    indices = xp().empty(sum(counts), index_dtype(grad.size))
    wanted = [(span, k) for span, k in zip(spans, counts, strict=True) if k]  # of none there is no smallest: no cut
    at = 0
    for begin in range(0, len(wanted), MOST_SPANS):
        some, of_each = zip(*wanted[begin : begin + MOST_SPANS], strict=True)
        own = indices[at : at + sum(of_each)]
        _write_largest(m, grad, some, of_each, own)
        at += own.size
    return indices


def _write_largest(m: Array, grad: Array, spans: Sequence[tuple[int, int]], counts: Sequence[int],
                   indices: Array) -> None:
    count, sizes = np.int64(len(spans)), (TALLY_BYTES * len(spans), 16 * len(spans))
    tiles, table = tile_table(grad, spans, counts)
    room, guesses_table = _guess_table(spans, counts)
    tallies, found, board, *more = zeroed(*sizes, *(board_bytes(tiles),) * (2 if room else 1))
    kept = NOTHING
    if room:
        kept = _room_for(grad, room, guesses_table[3 * len(spans) :], found, len(spans))
        guesses, scalars = xp().empty(len(spans), np.int64), (np.int64(grad.size), np.int64(0), np.int64(0))
        name = f"guess<{REAL[dtype_name(grad.dtype)]}>"
        launch("top_k", name, len(spans), m, grad, *scalars, guesses_table, kept.areas, guesses)
        _keep(m, grad, guesses, table, count, more[0], tiles, kept)
    cuts = _radix_select_spans(m, grad, spans, counts, tallies, kept)
    _select_largest(m, grad, cuts, table, count, board, tiles, indices, kept)


def _radix_select_spans(m: Array, grad: Array, spans: Sequence[tuple[int, int]], counts: Sequence[int],
                        tallies: Array, kept: Kept) -> Array:
    """The ``counts``-th largest magnitude of each span, and how many that equal it belong to the largest."""
    t, cuts = REAL[dtype_name(grad.dtype)], xp().empty(2 * len(spans), np.int64)
    pieces, table = table_of(spans, DIGIT_PIECE, counts)
    candidates = kept.areas, kept.values, kept.found
    for shift in _shifts(bits_dtype(grad)):
        scalars = table, np.int64(len(spans)), np.int32(shift)
        blocks = min(MAX_BLOCKS, pieces)
        launch("top_k", f"count_digits_spans<{t}>", blocks, m, grad, *scalars, cuts, tallies, *candidates)
    return cuts


@kept_on_device
def _guess_table(spans: Sequence[tuple[int, int]], counts: Sequence[int]) -> tuple[int, Array]:
    """Room for candidates in all spans; on the device where each begins, ends, as which of its sample the guess is
    taken, and where its area begins, and the last ends.
    """
    lengths = [stop - start for start, stop in spans]
    made = [guessed(n, k) if n >= SAMPLED else (0, 0) for n, k in zip(lengths, counts, strict=True)]
    wanted, rooms = zip(*made, strict=True)
    if sum(n for n, room in zip(lengths, rooms, strict=True) if room) < LONG:
        return 0, NO_CUT
    starts, stops = zip(*spans, strict=True)
    areas = np.cumsum((0, *rooms))
    return int(areas[-1]), xp().asarray(np.concatenate([starts, stops, wanted, areas]).astype(np.int64))
