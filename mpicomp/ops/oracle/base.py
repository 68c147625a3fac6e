"""The array primitives of every step: arithmetic, selection, reading and writing at indices, the memory's update."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from ..arguments import (
    Array,
    require_ascending,
    require_in_range,
    require_limit,
    require_memory,
)
from ..host import index_dtype

# ---- element-wise

def add(dst: Array, src: Array) -> None:
    """``dst += src``; integers wrap around."""
    np.add(dst, src, out=dst)


def multiply(dst: Array, src: Array) -> None:
    """``dst *= src``; integers wrap around."""
    np.multiply(dst, src, out=dst)


def minimum(dst: Array, src: Array) -> None:
    """``dst = min(dst, src)``; NaN wins."""
    np.minimum(dst, src, out=dst)


def maximum(dst: Array, src: Array) -> None:
    """``dst = max(dst, src)``; NaN wins."""
    np.maximum(dst, src, out=dst)


def scale(x: Array, factor: float) -> None:
    """``x *= factor``, the factor rounded to x's precision first."""
    x *= x.dtype.type(factor)


# ---- half precision, held as uint16 bits

def widen(dst: Array, src: Array, kind: str, factor: float = 1.0) -> None:
    """``dst`` (float32) ``= src`` (bits of ``kind``: ``"float16"`` or ``"bfloat16"``) ``* factor``."""
    if _is_float16(kind):
        dst[:] = src.view(np.float16)
    else:
        dst.view(np.uint32)[:] = src.astype(np.uint32) << 16
    if factor != 1.0:
        scale(dst, factor)


def narrow(dst: Array, src: Array, kind: str) -> None:
    """``dst`` (bits of ``kind``) ``= src`` (float32), rounded to nearest even; NaN stays NaN."""
    if _is_float16(kind):
        with np.errstate(over="ignore", under="ignore"):
            dst.view(np.float16)[:] = src
        return
    bits = src.view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    dst[:] = np.where(np.isnan(src), (bits >> 16) | 0x40, rounded)


def add_widened(dst: Array, src: Array, kind: str) -> None:
    """``dst`` (float32) ``+= src`` (bits of ``kind``)."""
    wide = np.empty_like(dst)
    widen(wide, src, kind)
    dst += wide


def _is_float16(kind: str) -> bool:
    if kind not in ("float16", "bfloat16"):
        raise InvalidArgument(f"kind must be float16 or bfloat16, got {kind}")
    return kind == "float16"


# ---- reading and writing at indices

def gather(memory: Array | None, grad: Array, indices: Array, values: Array) -> None:
    """``values[j] = u[indices[j]]``."""
    require_in_range(indices, len(grad))
    values[:] = grad[indices] if memory is None else memory[indices] + grad[indices]


def scatter(dst: Array, indices: Array, values: Array) -> None:
    """``dst[indices] = values``."""
    require_in_range(indices, len(dst))
    dst[indices] = values


def scatter_add(dst: Array, indices: Array, values: Array) -> None:
    """``dst[indices] += values``; indices are distinct."""
    require_in_range(indices, len(dst))
    dst[indices] += values


def clear(dst: Array, indices: Array) -> None:
    """``dst[indices] = 0``."""
    require_in_range(indices, len(dst))
    dst[indices] = 0


# ---- the memory's update

def masked_update(memory: Array, grad: Array, indices: Array, sent: Array, beta: float) -> None:
    """``memory += beta * grad``, but at ``indices`` ``(1 - beta) * memory + beta * (u - sent)``.

    Evaluated in this order in the array's precision. ``indices`` ascend.
    """
    require_in_range(indices, len(grad))
    require_ascending(indices)
    beta = grad.dtype.type(beta)
    unsent = (memory[indices] + grad[indices]) - sent
    kept = (grad.dtype.type(1) - beta) * memory[indices] + beta * unsent
    memory += beta * grad
    memory[indices] = kept


# ---- measures

def count_nonfinite(x: Array) -> tuple[int, int]:
    """Number of NaN or infinite elements, and the index of the first, or -1."""
    bad = np.flatnonzero(~np.isfinite(x))
    return len(bad), int(bad[0]) if len(bad) else -1


def count_beyond(memory: Array | None, grad: Array, limit: float) -> int:
    """Number of ``|u|`` not below ``limit``, NaN included."""
    require_memory(memory, grad)
    require_limit(limit)
    return int(np.count_nonzero(~(np.abs(compensated(memory, grad)) < grad.dtype.type(limit))))


def squared_norm(x: Array) -> float:
    """Sum of squares, accumulated in float64."""
    return float(np.sum(np.square(x, dtype=np.float64)))


# ---- index lists

def positions_of(indices: Array, bounds: list[int]) -> list[int]:
    """Number of ``indices`` (ascending) below each of ``bounds``."""
    return [int(np.count_nonzero(indices < bound)) for bound in bounds]


# ---- helpers of the other files

def compensated(memory: Array | None, grad: Array) -> Array:
    """u, which the compiled modules never store."""
    return grad if memory is None else memory + grad


def magnitude_bits(u: Array) -> Array:
    """``|u|`` as integers that order it, all NaN alike and largest."""
    infinity = np.array(np.inf, u.dtype).view(f"i{u.itemsize}")
    return np.minimum(np.abs(u).view(infinity.dtype), infinity + 1)


def to_indices(found: Array, n: int) -> Array:
    """In the integer type of indices into ``n`` elements."""
    return found.astype(index_dtype(n))
