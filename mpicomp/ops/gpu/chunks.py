"""Launchers of the chunk-wise maximum, of one vector and of many tensors in it; see :mod:`..oracle.many`."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from ..arguments import Bounds, Spans, chunk_counts, dtype_name, is_whole, position_dtype
from .arguments import check, check_length, kind_of, memory_or_null, remember
from .base import vouched
from .cuda_runtime import (
    INDEX,
    PACK_BYTES,
    POSITION,
    REAL,
    WARP,
    Array,
    blocks_for,
    kept_on_device,
    launch,
    on_device,
    to_host,
    xp,
)


def _lanes(chunk: int, grad: Array) -> int:
    """Threads that share a chunk, a power of two up to a warp: one of 112 float32 is read by 28, 16 bytes each."""
    reads = max(1, -(-chunk * grad.dtype.itemsize // PACK_BYTES))
    return min(WARP, 1 << (reads - 1).bit_length())


@on_device
def chunk_max(memory: Array | None, grad: Array, spans: Spans, positions: Array) -> None:
    t, m, chunks = kind_of(grad, "grad", REAL), memory_or_null(memory, grad), sum(chunk_counts(spans, grad.size))
    check(positions, "positions", position_dtype(spans), chunks)
    chunk = max((chunk for *_, chunk in spans), default=1)
    lanes, types = _lanes(chunk, grad), f"{t}, {POSITION[dtype_name(positions.dtype)]}"
    scalars: tuple[object, ...]
    if is_whole(spans, grad.size):
        name, scalars = f"chunk_max<{types}>", (np.int64(grad.size), np.int32(chunk), np.int32(lanes))
    else:
        name = f"chunk_max_spans<{types}>"
        scalars = _table(spans), np.int64(len(spans)), np.int64(chunks), np.int32(lanes)
    launch("chunk_max", name, blocks_for(chunks * lanes), m, grad, *scalars, positions)


@on_device
def chunk_indices(positions: Array, spans: Spans, n: int, indices: Array, known: bool = False) -> None:
    i, chunks = kind_of(indices, "indices", INDEX), sum(chunk_counts(spans, n))
    check(positions, "positions", position_dtype(spans), chunks)
    check(indices, "indices", indices.dtype, chunks)
    check_length(n, indices)
    invalid = _unread() if known else xp().zeros(1, np.int32)
    types = f"{POSITION[dtype_name(positions.dtype)]}, {i}"
    scalars: tuple[object, ...]
    if is_whole(spans, n):
        name, scalars = f"chunk_indices<{types}>", (np.int64(chunks), np.int32(spans[0][2]), np.int64(n))
        wrong = f"positions must lie inside their chunks of {spans[0][2]} elements and below n = {n}"
    else:
        name = f"chunk_indices_spans<{types}>"
        scalars = _table(spans), np.int64(len(spans)), np.int64(chunks)
        wrong = "positions must lie inside their chunks, and these inside their spans"
    remember(indices, None)
    launch("chunk_max", name, blocks_for(chunks), positions, *scalars, indices, invalid)
    if not known and int(to_host(invalid)[0]):
        raise InvalidArgument(wrong)
    vouched(indices, _bounds(spans), n)


@kept_on_device
def _unread() -> Array:
    """Room for a number that is not read."""
    return xp().zeros(1, np.int32)


def _bounds(spans: Spans) -> Bounds:
    return [span[:2] for span in spans]


@kept_on_device
def _table(spans: Spans) -> Array:
    """First chunks (and their number), starts, stops, chunks: as `chunk_of` in chunk_max.cu reads them."""
    starts, stops, chunks = np.array(spans, np.int64).reshape(-1, 3).T
    first = np.concatenate([[0], np.cumsum(-(-(stops - starts) // chunks))])
    return xp().asarray(np.concatenate([first, starts, stops, chunks]).astype(np.int64))
