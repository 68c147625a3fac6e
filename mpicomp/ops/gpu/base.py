"""Launchers of the primitives of every step; see :mod:`..oracle.base`.

Names, arguments and results are those of :mod:`.oracle`, bit for bit (sums of squares apart). Kernels run on
the device of their arrays, on its current stream. A function that has to answer (an index list, a count) or to
refuse an index list waits for the device, unless the list was made or examined here; the others only queue.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ...errors import InvalidArgument
from ..arguments import Bounds, is_whole, require_counts, require_lams, require_limit
from ..host import index_dtype
from ..host import sorted_magnitudes as sorted_on_host
from .arguments import bits_dtype, check, kind_of, known_of, memory_or_null, remember, require_indices
from .collect import collect_spans, collect_vector
from .cuda_runtime import (
    HALF,
    INDEX,
    INTEGER,
    REAL,
    Array,
    blocks_for,
    launch,
    on_device,
    packs,
    to_host,
    xp,
)
from .cuda_runtime import PIECE as PIECE_OF_BLOCK
from .largest import kth_keys, largest_of_spans, largest_of_vector

HALVES = 8  # elements for a thread of half.cu
PIECE = 1 << 40  # kernels run beside the host anyhow: a pass is one piece


# ---- element-wise: 16 bytes a thread

def _combine(operation: str, dst: Array, src: Array) -> None:
    t = kind_of(dst, "dst", {**REAL, **INTEGER})
    check(src, "src", dst.dtype, dst.size)
    launch("reduce", f"combine<{operation}, {t}>", blocks_for(packs(dst)), dst, src, np.int64(dst.size))


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
    launch("reduce", f"scale<{t}>", blocks_for(packs(x)), x, np.int64(x.size), x.dtype.type(factor))


# ---- half precision, held as uint16 bits: eight elements a thread

def _convert(name: str, dst: Array, src: Array, kind: str, to: str, of: str) -> None:
    if kind not in HALF:
        raise InvalidArgument(f"kind must be float16 or bfloat16, got {kind}")
    check(dst, "dst", to)
    check(src, "src", of, dst.size)
    launch("half", f"{name}<{HALF[kind]}>", blocks_for(-(-dst.size // HALVES)), dst, src, np.int64(dst.size))


@on_device
def widen(dst: Array, src: Array, kind: str, factor: float = 1.0) -> None:
    _convert("widen", dst, src, kind, "float32", "uint16")
    if factor != 1.0:
        scale(dst, factor)


@on_device
def narrow(dst: Array, src: Array, kind: str) -> None:
    _convert("narrow", dst, src, kind, "uint16", "float32")


@on_device
def add_widened(dst: Array, src: Array, kind: str) -> None:
    _convert("add_widened", dst, src, kind, "float32", "uint16")


# ---- selection (of chunks: chunks.py)

def _key(lam: float, grad: Array) -> int:
    """The bits of a magnitude."""
    return int(np.abs(grad.dtype.type(lam)).view(bits_dtype(grad)))


@on_device
def top_k(memory: Array | None, grad: Array, spans: Bounds, counts: list[int]) -> Array:
    kind_of(grad, "grad", REAL)
    require_counts(spans, counts, grad.size)
    m = memory_or_null(memory, grad)
    if is_whole(spans, grad.size):
        return largest_of_vector(m, grad, counts[0])
    return vouched(largest_of_spans(m, grad, spans, counts), spans, grad.size)


@on_device
def threshold(memory: Array | None, grad: Array, spans: Bounds,
                    lams: list[float]) -> tuple[Array, list[int]]:
    kind_of(grad, "grad", REAL)
    require_lams(spans, lams, grad.size)
    m, keys = memory_or_null(memory, grad), [_key(lam, grad) for lam in lams]
    if is_whole(spans, grad.size):
        indices = collect_vector(m, grad, keys[0])
        return indices, [indices.size]
    indices, counts = collect_spans(m, grad, spans, keys)
    return vouched(indices, spans, grad.size), counts


def vouched(indices: Array, spans: Bounds, n: int) -> Array:
    """Selections of spans one behind another, vouched for where they ascend through all of them."""
    ascend = all(last[1] <= start for last, (start, _) in pairwise(spans))
    return remember(indices, n if ascend else None)


@on_device
def kth_largest(x: Array, spans: Bounds, counts: list[int]) -> list[float]:
    kind_of(x, "x", REAL)
    require_counts(spans, counts, x.size, least=1)
    return kth_keys(x, spans, counts).astype(bits_dtype(x)).view(x.dtype).tolist()


def sorted_magnitudes(x: Array, spans: Bounds) -> list[np.ndarray]:
    kind_of(x, "x", REAL)
    return sorted_on_host(to_host(x), spans)


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
    blocks, beta = blocks_for(n, PIECE_OF_BLOCK), grad.dtype.type(beta)
    scalars = np.int64(n), indices, sent, np.int64(indices.size), beta
    launch("update", f"masked_update<{t}, {i}>", blocks, memory, grad, *scalars)


# ---- measures: 16 bytes a thread

@on_device
def count_nonfinite(x: Array) -> tuple[int, int]:
    t = kind_of(x, "x", REAL)
    found = zeros(2, np.uint64)
    launch("measure", f"count_nonfinite<{t}>", blocks_for(packs(x)), x, np.int64(x.size), found)
    count, behind = (int(value) for value in to_host(found))
    return count, x.size - behind if count else -1


@on_device
def count_beyond(memory: Array | None, grad: Array, limit: float) -> int:
    t, m = kind_of(grad, "grad", REAL), memory_or_null(memory, grad)
    require_limit(limit)
    found = zeros(1, np.uint64)
    scalars = np.int64(grad.size), grad.dtype.type(limit), found
    launch("measure", f"count_beyond<{t}>", blocks_for(packs(grad)), m, grad, *scalars)
    return int(to_host(found)[0])


@on_device
def squared_norm(x: Array) -> float:
    t = kind_of(x, "x", REAL)
    blocks = blocks_for(packs(x))
    sums = empty(blocks, np.float64)  # one a block, added here in their order
    launch("measure", f"squared_norm<{t}>", blocks, x, np.int64(x.size), sums)
    return float(np.sum(to_host(sums)))


# ---- arrays on this device

def empty(n: int, dtype: npt.DTypeLike) -> Array:
    return xp().empty(n, dtype)


def zeros(n: int, dtype: npt.DTypeLike) -> Array:
    return xp().zeros(n, dtype)


def from_host(x: np.ndarray) -> Array:
    return xp().asarray(x)


def arange(n: int) -> Array:
    return remember(xp().arange(n, dtype=index_dtype(n)), n)


def concatenate(arrays: list[Array], dtype: npt.DTypeLike) -> Array:
    return xp().concatenate(arrays, dtype=dtype) if arrays else empty(0, dtype)


def positions_of(indices: Array, bounds: list[int]) -> list[int]:
    known = known_of(indices)
    if known is not None and all(bound == 0 or bound >= known.below for bound in bounds):
        return [indices.size if bound else 0 for bound in bounds]
    return to_host(xp().searchsorted(indices, xp().asarray(bounds))).tolist()
