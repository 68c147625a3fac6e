"""Launchers of the chunk-wise maximum, of one vector and of many tensors in it; see :mod:`..oracle.many`."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np

from ...errors import InvalidArgument
from ..arguments import chunk_counts
from .arguments import (
    check,
    count_chunks,
    kind_of,
    known_of,
    memory_or_null,
    position_dtype,
    remember,
)
from .collect import where
from .cuda_runtime import (
    INDEX,
    PACK_BYTES,
    POSITION,
    REAL,
    WARP,
    Array,
    blocks_for,
    launch,
    on_device,
    to_host,
    xp,
)

Spans = list[tuple[int, int, int]]  # start, stop, chunk


@on_device
def chunk_max(memory: Array | None, grad: Array, chunk: int, positions: Array) -> None:
    t, m, chunks = kind_of(grad, "grad", REAL), memory_or_null(memory, grad), count_chunks(chunk, grad.size)
    check(positions, "positions", position_dtype(chunk), chunks)
    lanes = _lanes(chunk, grad)
    name = f"chunk_max<{t}, {POSITION[positions.dtype.name]}>"
    scalars = np.int64(grad.size), np.int32(chunk), np.int32(lanes)
    launch("chunk_max", name, blocks_for(chunks * lanes), m, grad, *scalars, positions)
    remember(positions, (grad.size, chunk))


def _lanes(chunk: int, grad: Array) -> int:
    """Threads that share a chunk, a power of two up to a warp: one of 112 float32 is read by 28, 16 bytes each."""
    reads = max(1, -(-chunk * grad.dtype.itemsize // PACK_BYTES))
    return min(WARP, 1 << (reads - 1).bit_length())


@on_device
def chunk_indices(positions: Array, chunk: int, n: int, indices: Array) -> None:
    i, chunks = kind_of(indices, "indices", INDEX), count_chunks(chunk, n)
    check(positions, "positions", position_dtype(chunk), chunks)
    check(indices, "indices", indices.dtype, chunks)
    if n > np.iinfo(indices.dtype).max:
        raise InvalidArgument(f"indices must be int64 for n = {n}")
    trusted = known_of(positions) == (n, chunk)
    invalid = xp().zeros(1, np.int32)
    name = f"chunk_indices<{POSITION[positions.dtype.name]}, {i}>"
    scalars = np.int64(chunks), np.int32(chunk), np.int64(n)
    launch("chunk_max", name, blocks_for(chunks), positions, *scalars, indices, invalid)
    if not trusted and int(to_host(invalid)[0]):
        raise InvalidArgument(f"positions must lie inside their chunks of {chunk} elements and below n = {n}")
    remember(indices, n)


@on_device
def chunk_max_spans(memory: Array | None, grad: Array, spans: Spans, positions: Array) -> None:
    if len(spans) == 1 and spans[0][:2] == (0, grad.size):
        chunk_max(memory, grad, spans[0][2], positions)
        return
    t, m, chunks = kind_of(grad, "grad", REAL), memory_or_null(memory, grad), sum(chunk_counts(spans, grad.size))
    check(positions, "positions", _widest(spans), chunks)
    lanes = _lanes(max((chunk for *_, chunk in spans), default=1), grad)
    name = f"chunk_max_spans<{t}, {POSITION[positions.dtype.name]}>"
    scalars = np.int64(len(spans)), np.int64(chunks), np.int32(lanes)
    launch("chunk_max", name, blocks_for(chunks * lanes), m, grad, _table(spans, grad), *scalars, positions)
    remember(positions, tuple(spans))


@on_device
def chunk_indices_spans(positions: Array, spans: Spans, n: int, indices: Array) -> None:
    if len(spans) == 1 and spans[0][:2] == (0, n):
        chunk_indices(positions, spans[0][2], n, indices)
        return
    i, chunks = kind_of(indices, "indices", INDEX), sum(chunk_counts(spans, n))
    check(positions, "positions", _widest(spans), chunks)
    check(indices, "indices", indices.dtype, chunks)
    if n > np.iinfo(indices.dtype).max:
        raise InvalidArgument(f"indices must be int64 for n = {n}")
    invalid, trusted = xp().zeros(1, np.int32), known_of(positions) == tuple(spans)
    name = f"chunk_indices_spans<{POSITION[positions.dtype.name]}, {i}>"
    scalars = np.int64(len(spans)), np.int64(chunks)
    launch("chunk_max", name, blocks_for(chunks), positions, _table(spans, positions), *scalars, indices, invalid)
    if not trusted and int(to_host(invalid)[0]):
        raise InvalidArgument("positions must lie inside their chunks, and these inside their spans")
    ascend = all(last[1] <= start for last, (start, *_) in pairwise(spans))
    remember(indices, n if ascend else None)


def _widest(spans: Spans) -> str:
    return position_dtype(max((chunk for *_, chunk in spans), default=1))


def _table(spans: Spans, like: Array) -> Array:
    return _kept_table(tuple(spans), xp(), where(like))


@lru_cache(maxsize=64)  # spans are those of a model: made and copied to the device once
def _kept_table(spans: tuple[tuple[int, int, int], ...], module: object, device: str) -> Array:
    """First chunks (and their number), starts, stops, chunks: as `chunk_of` in chunk_max.cu reads them."""
    starts, stops, chunks = np.array(spans, np.int64).reshape(-1, 3).T
    first = np.concatenate([[0], np.cumsum(-(-(stops - starts) // chunks))])
    return xp().asarray(np.concatenate([first, starts, stops, chunks]).astype(np.int64))
