"""Launchers for ascending index lists; see :mod:`..oracle.lists`."""

from __future__ import annotations

from typing import SupportsInt

import numpy as np

from ...errors import InvalidArgument
from ..arguments import dtype_name, require_limit
from . import arguments
from .arguments import (
    ascended,
    ascends_below,
    check,
    check_length,
    examined,
    keep_gap,
    kind_of,
    known_of,
    memory_or_null,
    require_indices,
    told,
)
from .base import empty, zeros
from .collect import NO_CUT, collect_vector
from .cuda_runtime import BITS_PIECE, INDEX, REAL, Array, blocks_for, launch, on_device, xp

BITS = 64  # of a bitmap, for one thread


@on_device
def vouch(indices: Array, n: int, of: Array | None = None) -> Array:
    kind_of(indices, "indices", INDEX)
    return arguments.remember(indices, n) if of is None or known_of(of) is not None else indices


@on_device
def gather_counted(memory: Array | None, grad: Array, indices: Array, values: Array, limit: float = np.inf) -> int:
    t, i, m = kind_of(grad, "grad", REAL), kind_of(indices, "indices", INDEX), memory_or_null(memory, grad)
    check(values, "values", grad.dtype, indices.size)
    require_limit(limit)
    require_indices(indices, grad.size)
    kernel, k = f"gather_counted<{t}, {i}>", np.int64(indices.size)
    bad, gaps = told("gather", kernel, 2, indices.size, m, grad, indices, k, values, grad.dtype.type(limit))
    keep_gap(indices, gaps)
    return int(bad.sum())


@on_device
def filled_length(indices: Array, n: int) -> int:
    name, k = f"check_filled<{kind_of(indices, 'indices', INDEX)}>", np.int64(indices.size)
    own, gaps, wrong = told("gather", name, 3, indices.size, indices, k, np.int64(n))
    return int(own.sum()) if ascended(gaps) and not wrong.any() else -1


@on_device
def common(a: Array, b: Array) -> tuple[Array, Array]:
    i = kind_of(a, "a", INDEX)
    check(b, "b", a.dtype)
    for indices in (a, b):
        require_indices(indices, 2**64, ascending=True)
    if a.size == 0 or b.size == 0:
        return empty(0, np.int64), empty(0, np.int64)
    k, m = np.int64(a.size), np.int64(b.size)
    places, found = empty(a.size, np.int64), empty(a.size, np.float32)
    launch("lists", f"look_up<{i}>", blocks_for(k), a, k, b, m, places, found)
    in_a = collect_vector(NO_CUT, found, int(np.float32(1).view(np.int32)))
    return arguments.remember(in_a.astype(np.int64, copy=False), a.size), arguments.remember(places[in_a], b.size)


@on_device
def ascends(indices: Array, n: int) -> bool:
    kind_of(indices, "indices", INDEX)
    if ascends_below(indices, n):
        return True
    largest, descends = examined(indices)
    fine = indices.size == 0 or (largest < n and not descends)
    arguments.remember(indices, n if fine else None)
    return fine


@on_device
def largest_gap(indices: Array) -> int:
    kind_of(indices, "indices", INDEX)
    known = known_of(indices)
    if known is not None and known.largest_gap is not None:
        return known.largest_gap
    kernel = f"measure_gaps<{INDEX[dtype_name(indices.dtype)]}>"
    gaps = told("lists", kernel, 1, indices.size, indices, np.int64(indices.size))
    keep_gap(indices, gaps)
    return int(gaps.max(initial=0))


@on_device
def pack_gaps(indices: Array, width: int, out: Array) -> None:
    i, k = kind_of(indices, "indices", INDEX), np.int64(indices.size)
    _check_packed(out, "out", k, width)
    if largest_gap(indices) >> width:
        raise InvalidArgument(f"indices must ascend with gaps below 2^{width}")
    # One byte a thread.
    launch("lists", f"pack_gaps<{i}>", blocks_for(out.size), indices, k, np.int32(width), out, np.int64(out.size))


@on_device
def unpack_gaps(packed: Array, width: int, n: int, indices: Array, wait: bool = True) -> None:
    i = kind_of(indices, "indices", INDEX)
    _check_packed(packed, "packed", indices.size, width)
    check_length(n, indices)
    steps, k = empty(indices.size, np.int64), np.int64(indices.size)
    launch("lists", "read_gaps", blocks_for(k), packed, np.int32(width), k, steps)
    # A step is at most 2^63, so one that comes round to a small number again comes by a large one.
    name, given = f"write_indices<{i}>", (xp().cumsum(steps), k, np.int64(n), indices)
    arguments.remember(indices, None)
    if not wait:
        launch("lists", name, blocks_for(k), *given, np.uintp(0))
        return
    last = int(told("lists", name, 1, indices.size, *given).max(initial=0))
    if indices.size and last >= n:
        raise InvalidArgument(f"indices must be in [0, {n}), got {np.uint64(last).astype(np.int64)}")
    arguments.remember(indices, n)


def _check_packed(packed: Array, name: str, k: SupportsInt, width: int) -> None:
    if not 0 <= width <= 63:
        raise InvalidArgument(f"width must be in [0, 63], got {width}")
    check(packed, name, "uint8", -(-int(k) * width // 8))


@on_device
def pack_bitmap(indices: Array, n: int, out: Array) -> None:
    i = kind_of(indices, "indices", INDEX)
    check_length(n)
    check(out, "out", "uint8", -(-n // 8))
    require_indices(indices, n)
    k = np.int64(indices.size)
    if known_of(indices) is not None:  # it ascends
        launch("lists", f"write_bitmap<{i}>", blocks_for(n, BITS_PIECE), indices, k, np.int64(n), out)
        return
    words = zeros(-(-n // 32), np.uint32)  # what an atomic operation can set bits in
    launch("lists", f"set_bits<{i}>", blocks_for(k), indices, k, words)
    out[:] = words.view(np.uint8)[: out.size]


@on_device
def unpack_bitmap(bitmap: Array, n: int, indices: Array, wait: bool = True) -> None:
    i, words = kind_of(indices, "indices", INDEX), -(-n // BITS)
    check_length(n, indices)
    check(bitmap, "bitmap", "uint8", -(-n // 8))
    counts, scalars = empty(words, np.int64), (np.int64(n), np.int64(words))
    launch("lists", "count_bits", blocks_for(words), bitmap, *scalars, counts)
    until = xp().cumsum(counts)
    seen = wait or not indices.size  # for a list of none shows nothing
    total = (int(until[-1]) if words else 0) if seen else indices.size
    if total != indices.size:
        raise InvalidArgument(f"the bitmap must hold {indices.size} indices, got {total}")
    launch("lists", f"write_bits<{i}>", blocks_for(words), bitmap, *scalars, until, np.int64(indices.size), indices)
    arguments.remember(indices, n if seen else None)
