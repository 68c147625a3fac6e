"""Launchers that turn a cut into the ascending list of all it admits, and find the cut of the k largest."""

from __future__ import annotations

import numpy as np

from ..cuda_runtime import DIGIT_BITS, INDEX, REAL, TILE_BYTES, Array, blocks_for, launch, packs, to_host, xp
from ..reference import index_dtype
from .arguments import bits_dtype, vouch

NO_CUT = np.uintp(0)
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
    name = f"select<{t}, {INDEX[indices.dtype.name]}>"
    launch("collect", name, tiles, m, grad, *scalars, cut, *space, indices, totals)
    return indices, totals


def board_bytes(tiles: int) -> int:
    """What tiles tell each other: `Board` in collect.cu."""
    return 4 * (-(-(tiles + 1) // 4) * 4) + 2 * 16 * tiles


def _radix_select(m: Array, grad: Array, k: int) -> Array:
    """The k-th largest magnitude, and how many that equal it belong to the k largest, as an array on the device."""
    t, bits = REAL[grad.dtype.name], bits_dtype(grad)
    cut, counts = xp().asarray(np.array([0, k], np.int64)), xp().zeros(1 << DIGIT_BITS, np.uint64)
    for shift in range((8 * bits.itemsize - 1) // DIGIT_BITS * DIGIT_BITS, -1, -DIGIT_BITS):
        scalars = np.int64(grad.size), np.int32(shift)
        launch("top_k", f"count_digits<{t}>", blocks_for(packs(grad)), m, grad, *scalars, cut, counts)
        launch("top_k", "choose_digit", 1, cut, counts)
    return cut
