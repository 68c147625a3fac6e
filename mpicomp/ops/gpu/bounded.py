"""Launchers of error-bounded codes, a warp per block; see :mod:`..oracle.bounded`.

One pass computes headers, their sizes added up are the places of blocks, and a second pass writes these. The device is
waited for to know a stream's length, and to refuse bytes that are none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..error_bound import (
    BLOCK,
    BYTES_OF_HEADER,
    grid_of,
    largest_integer,
    refused_stream,
    refused_sum,
    require_divisor,
    require_room,
    require_streams,
)
from .arguments import check, kind_of
from .base import empty
from .cuda_runtime import (
    REAL,
    THREADS,
    WARP,
    Array,
    addresses,
    blocks_for,
    launch,
    on_device,
    to_host,
    xp,
)

NULL = np.uintp(0)


@on_device
def encode_bounded(x: Array, bound: float, terms: int, codes: Array) -> tuple[int, int]:
    kind_of(x, "x", REAL)
    grid = grid_of(bound)
    largest = largest_integer(x.dtype, terms, grid)
    scalars = np.float64(grid.bound), np.float64(grid.step), np.float64(grid.inverse), np.float64(largest)
    return _write("encode_blocks", (x, np.int64(x.size), *scalars), x.size, x.dtype, codes)


@on_device
def sum_bounded(streams: list[Array], n: int, dtype: npt.DTypeLike, bound: float, codes: Array) -> tuple[int, int]:
    require_streams(streams, n, dtype)
    step = np.float64(grid_of(bound).step)
    starts = xp().concatenate([_starts_of(stream, "streams", n, dtype) for stream in streams])
    table = xp().asarray(np.array(addresses(streams), np.uint64))
    return _write("sum_blocks", (table, starts, np.int64(len(streams)), np.int64(n), step), n, dtype, codes)


@on_device
def decode_bounded(codes: Array, bound: float, divisor: int, out: Array) -> None:
    t, step = kind_of(out, "out", REAL), np.float64(grid_of(bound).step)
    require_divisor(divisor)
    starts = _starts_of(codes, "codes", out.size, out.dtype)
    scalars = np.int64(out.size), step, np.float64(divisor)
    launch("bounded", f"decode_blocks<{t}>", _grid(out.size), codes, starts, *scalars, out)


def _write(kernel: str, given: tuple[object, ...], n: int, dtype: npt.DTypeLike, codes: Array) -> tuple[int, int]:
    """Write the stream of a kernel that is launched twice: for headers, then for blocks."""
    check(codes, "codes", np.uint8)
    require_room(codes, n, dtype)
    if n == 0:
        return 0, 0
    name, headers = f"{kernel}<{REAL[np.dtype(dtype).name]}>", codes[: -(-n // BLOCK) * BYTES_OF_HEADER]
    launch("bounded", name, _grid(n), *given, headers, NULL, NULL)
    starts, nbytes, escaped, valid = _located(headers, n, dtype)
    if not valid:
        raise refused_sum()
    launch("bounded", name, _grid(n), *given, headers, starts, codes)
    return nbytes, escaped


def _starts_of(stream: Array, name: str, n: int, dtype: npt.DTypeLike) -> Array:
    """Begin of each block of a stream; refuses bytes that are no stream."""
    check(stream, name, np.uint8)
    count = -(-n // BLOCK)
    if count == stream.size == 0:
        return empty(0, np.int64)
    if 0 < count * BYTES_OF_HEADER <= stream.size:
        starts, nbytes, _, valid = _located(stream, n, dtype)
        if valid and nbytes == stream.size:
            return starts
    raise refused_stream(n, dtype)


def _located(stream: Array, n: int, dtype: npt.DTypeLike) -> tuple[Array, int, int, bool]:
    """Begins of the blocks, bytes of the stream, number of escaped blocks, and whether all headers are valid."""
    count = -(-n // BLOCK)
    sizes, found = empty(1 + count, np.int64), xp().zeros(3, np.uint64)
    name = f"measure_blocks<{REAL[np.dtype(dtype).name]}>"
    launch("bounded", name, blocks_for(count), stream, np.int64(count), np.int64(n), sizes, found)
    starts = xp().cumsum(sizes)[:-1]
    nbytes, escaped, invalid = (int(value) for value in to_host(found))
    return starts, nbytes, escaped, not invalid


def _grid(n: int) -> int:
    return blocks_for(-(-n // BLOCK), THREADS // WARP)
