"""Launchers of the primitives of every step; see :mod:`..reference.base`.

Names, arguments and results are those of :mod:`.reference`, bit for bit (sums of squares apart). Kernels run on
the device of their arrays, on its current stream. A function that has to answer (an index list, a count) or to
refuse an index list waits for the device; the others only queue.
"""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from ..cuda_runtime import (
    DIGIT_BITS,
    HALF,
    INDEX,
    INTEGER,
    POSITION,
    REAL,
    TILE,
    WARP,
    Array,
    blocks_for,
    launch,
    on_device,
    to_host,
    xp,
)
from ..reference import index_dtype
from .arguments import bits_dtype, check, count_chunks, kind_of, memory_or_null, position_dtype, require_indices

PIECE = 1 << 40  # kernels run beside the host anyhow: a pass is one piece


# ---- element-wise: one element a thread

def _combine(operation: str, dst: Array, src: Array) -> None:
    t = kind_of(dst, "dst", {**REAL, **INTEGER})
    check(src, "src", dst.dtype, dst.size)
    launch("reduce", f"combine<{operation}, {t}>", blocks_for(dst.size), dst, src, np.int64(dst.size))


@on_device
def add(dst: Array, src: Array) -> None:
    _combine("Add", dst, src)


@on_device
def multiply(dst: Array, src: Array) -> None:
    _combine("Multiply", dst, src)


@on_device
def minimum(dst: Array, src: Array) -> None:
    _combine("Minimum", dst, src)


@on_device
def maximum(dst: Array, src: Array) -> None:
    _combine("Maximum", dst, src)


@on_device
def scale(x: Array, factor: float) -> None:
    t = kind_of(x, "x", REAL)
    launch("reduce", f"scale<{t}>", blocks_for(x.size), x, np.int64(x.size), x.dtype.type(factor))


# ---- half precision, held as uint16 bits: one element a thread

def _convert(name: str, dst: Array, src: Array, kind: str, to: str, of: str) -> None:
    if kind not in HALF:
        raise InvalidArgument(f"kind must be float16 or bfloat16, got {kind}")
    check(dst, "dst", to)
    check(src, "src", of, dst.size)
    launch("half", f"{name}<{HALF[kind]}>", blocks_for(dst.size), dst, src, np.int64(dst.size))


@on_device
def widen(dst: Array, src: Array, kind: str) -> None:
    _convert("widen", dst, src, kind, "float32", "uint16")


@on_device
def narrow(dst: Array, src: Array, kind: str) -> None:
    _convert("narrow", dst, src, kind, "uint16", "float32")


@on_device
def add_widened(dst: Array, src: Array, kind: str) -> None:
    _convert("add_widened", dst, src, kind, "float32", "uint16")


# ---- selection

@on_device
def chunk_max(memory: Array | None, grad: Array, chunk: int, positions: Array) -> None:
    t, m, chunks = kind_of(grad, "grad", REAL), memory_or_null(memory, grad), count_chunks(chunk, grad.size)
    check(positions, "positions", position_dtype(chunk), chunks)
    lanes = _lanes(chunk)
    name = f"chunk_max<{t}, {POSITION[positions.dtype.name]}>"
    scalars = np.int64(grad.size), np.int32(chunk), np.int32(lanes)
    launch("chunk_max", name, blocks_for(chunks * lanes), m, grad, *scalars, positions)


def _lanes(chunk: int) -> int:
    """Threads that share a chunk, a power of two, at most a warp: a chunk of 112 is read in four steps by 32."""
    return min(WARP, 1 << (chunk - 1).bit_length())


@on_device
def chunk_indices(positions: Array, chunk: int, n: int, indices: Array) -> None:
    i, chunks = kind_of(indices, "indices", INDEX), count_chunks(chunk, n)
    check(positions, "positions", position_dtype(chunk), chunks)
    check(indices, "indices", indices.dtype, chunks)
    if n > np.iinfo(indices.dtype).max:
        raise InvalidArgument(f"indices must be int64 for n = {n}")
    invalid = zeros(1, np.int32)
    name = f"chunk_indices<{POSITION[positions.dtype.name]}, {i}>"
    scalars = np.int64(chunks), np.int32(chunk), np.int64(n)
    launch("chunk_max", name, blocks_for(chunks), positions, *scalars, indices, invalid)
    if int(invalid[0]):
        raise InvalidArgument(f"positions must lie inside their chunks of {chunk} elements and below n = {n}")


@on_device
def threshold(memory: Array | None, grad: Array, lam: float) -> Array:
    kind_of(grad, "grad", REAL)
    if not lam >= 0:
        raise InvalidArgument(f"lam must be a number >= 0, got {lam}")
    bits = np.abs(grad.dtype.type(lam)).view(bits_dtype(grad))
    return _collect(memory_or_null(memory, grad), grad, int(bits), grad.size)


@on_device
def top_k(memory: Array | None, grad: Array, k: int) -> Array:
    kind_of(grad, "grad", REAL)
    if not 0 <= k <= grad.size:
        raise InvalidArgument(f"k must be in [0, {grad.size}], got {k}")
    m = memory_or_null(memory, grad)
    if k == 0:
        return empty(0, index_dtype(grad.size))
    return _collect(m, grad, *_radix_select(m, grad, k))


def _collect(m: Array, grad: Array, key: int, ties: int) -> Array:
    """Ascending indices of magnitudes above ``key`` and of the first ``ties`` equal to it."""
    t, dtype = REAL[grad.dtype.name], index_dtype(grad.size)
    if grad.size == 0:
        return empty(0, dtype)
    # One block a tile, whose place in the result follows from the counts of the tiles before it.
    tiles, n, key = -(-grad.size // TILE), np.int64(grad.size), bits_dtype(grad).type(key)
    above, equal = empty(tiles, np.int64), empty(tiles, np.int64)
    launch("collect", f"count_selected<{t}>", tiles, m, grad, n, key, above, equal)
    above, equal = xp().cumsum(above), xp().cumsum(equal)
    indices = empty(int(above[-1]) + min(int(equal[-1]), ties), dtype)
    name = f"write_selected<{t}, {INDEX[indices.dtype.name]}>"
    launch("collect", name, tiles, m, grad, n, key, np.int64(ties), above, equal, indices)
    return indices


def _radix_select(m: Array, grad: Array, k: int) -> tuple[int, int]:
    """The k-th largest magnitude, and how many that equal it belong to the k largest."""
    key, ties, t, bits = 0, k, REAL[grad.dtype.name], bits_dtype(grad)
    for shift in range((8 * bits.itemsize - 1) // DIGIT_BITS * DIGIT_BITS, -1, -DIGIT_BITS):
        counts = zeros(1 << DIGIT_BITS, np.uint64)
        scalars = np.int64(grad.size), np.int32(shift), bits.type(key)
        launch("top_k", f"count_digits<{t}>", blocks_for(grad.size), m, grad, *scalars, counts)
        from_top = np.cumsum(to_host(counts)[::-1].astype(np.int64))
        place = int(np.searchsorted(from_top, ties))  # the first digit from the top that reaches `ties`
        ties -= int(from_top[place - 1]) if place else 0
        key = key << DIGIT_BITS | (len(counts) - 1 - place)
    return key, ties


# ---- reading and writing at indices: one index a thread

@on_device
def gather(memory: Array | None, grad: Array, indices: Array, values: Array) -> None:
    t, i, m = kind_of(grad, "grad", REAL), kind_of(indices, "indices", INDEX), memory_or_null(memory, grad)
    check(values, "values", grad.dtype, indices.size)
    require_indices(indices, grad.size)
    k = np.int64(indices.size)
    launch("gather", f"gather<{t}, {i}>", blocks_for(indices.size), m, grad, indices, k, values)


def _write_at(name: str, dst: Array, indices: Array, *values: Array) -> None:
    t, i = kind_of(dst, "dst", REAL), kind_of(indices, "indices", INDEX)
    for array in values:
        check(array, "values", dst.dtype, indices.size)
    require_indices(indices, dst.size)
    k = np.int64(indices.size)
    launch("gather", f"{name}<{t}, {i}>", blocks_for(indices.size), dst, indices, k, *values)


@on_device
def scatter(dst: Array, indices: Array, values: Array) -> None:
    _write_at("scatter", dst, indices, values)


@on_device
def scatter_add(dst: Array, indices: Array, values: Array) -> None:
    _write_at("scatter_add", dst, indices, values)


@on_device
def clear(dst: Array, indices: Array) -> None:
    _write_at("clear", dst, indices)


# ---- the memory's update

@on_device
def masked_update(memory: Array, grad: Array, indices: Array, sent: Array, beta: float) -> None:
    t, i, n = kind_of(grad, "grad", REAL), kind_of(indices, "indices", INDEX), grad.size
    check(memory, "memory", grad.dtype, n)
    check(sent, "sent", grad.dtype, indices.size)
    require_indices(indices, n, ascending=True)
    k, beta, kept = np.int64(indices.size), grad.dtype.type(beta), xp().empty_like(sent)
    # Three kernels in the stream's order: what is kept is computed before memory is overwritten.
    launch("update", f"keep_unsent<{t}, {i}>", blocks_for(k), memory, grad, indices, sent, k, beta, kept)
    launch("update", f"filter<{t}>", blocks_for(n), memory, grad, np.int64(n), beta)
    launch("gather", f"scatter<{t}, {i}>", blocks_for(k), memory, indices, k, kept)


# ---- measures: one element a thread

@on_device
def count_nonfinite(x: Array) -> tuple[int, int]:
    t = kind_of(x, "x", REAL)
    found = from_host(np.array([0, np.iinfo(np.uint64).max], np.uint64))
    launch("measure", f"count_nonfinite<{t}>", blocks_for(x.size), x, np.int64(x.size), found)
    count, first = (int(value) for value in to_host(found))
    return count, first if count else -1


@on_device
def squared_norm(x: Array) -> float:
    t = kind_of(x, "x", REAL)
    sums = zeros(blocks_for(x.size), np.float64)  # one a block, added here in their order
    launch("measure", f"squared_norm<{t}>", blocks_for(x.size), x, np.int64(x.size), sums)
    return float(np.sum(to_host(sums)))


# ---- arrays on this device

def empty(n: int, dtype) -> Array:
    return xp().empty(n, dtype)


def zeros(n: int, dtype) -> Array:
    return xp().zeros(n, dtype)


def from_host(x: np.ndarray) -> Array:
    return xp().asarray(x)


def arange(n: int) -> Array:
    return xp().arange(n, dtype=index_dtype(n))


def concatenate(arrays: list[Array], dtype) -> Array:
    return xp().concatenate(arrays, dtype=dtype) if arrays else empty(0, dtype)


def positions_of(indices: Array, bounds: list[int]) -> list[int]:
    return to_host(xp().searchsorted(indices, xp().asarray(bounds))).tolist()


def union(lists: list[Array], n: int) -> Array:
    return xp().unique(concatenate(lists, index_dtype(n)))
