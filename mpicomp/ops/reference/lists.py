"""Ascending index lists: what two have in common, and how they are written in few bytes."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from .base import (
    Array,
    clear,
    count_nonfinite,
    gather,
    index_dtype,
    require_ascending,
    require_in_range,
    scale,
)


def common(a: Array, b: Array) -> tuple[Array, Array]:
    """Where in ``a`` and where in ``b`` (ascending, distinct) the entries stand that both have; int64."""
    require_ascending(a)
    require_ascending(b)
    _, in_a, in_b = np.intersect1d(a, b, assume_unique=True, return_indices=True)
    return in_a.astype(np.int64), in_b.astype(np.int64)


def places_in(whole: Array, part: Array) -> Array:
    """Where in ``whole`` (ascending) the entries of ``part`` (ascending) stand, all of which it has; int64."""
    return common(part, whole)[1]


def ascends(indices: Array, n: int) -> bool:
    """Whether ``indices`` ascend within ``[0, n)``, none twice."""
    return not len(indices) or bool(indices[0] >= 0 and indices[-1] < n and (indices[1:] > indices[:-1]).all())


def vouch(indices: Array, n: int, of: Array | None = None) -> Array:
    """The list itself, of which the caller knows that it ascends within ``[0, n)``: nobody need look again.

    Where a list is given that it is part ``of``, it does if that does.
    """
    return indices


def filled_length(indices: Array, n: int) -> int:
    """How many of ``indices`` ascend within ``[0, n)``, where only the filling ``n`` follows them; else -1."""
    count = int(np.count_nonzero(indices != n))
    return count if ascends(indices[:count], n) else -1


def gather_counted(memory: Array | None, grad: Array, indices: Array, values: Array) -> int:
    """``values[j] = u[indices[j]]``, and how many of these are not finite."""
    gather(memory, grad, indices, values)
    return count_nonfinite(values)[0]


def take_out(dst: Array, indices: Array, factor: float, values: Array) -> None:
    """``values[j] = dst[indices[j]] * factor``, the factor rounded first; then ``dst`` is zero there."""
    gather(None, dst, indices, values)
    clear(dst, indices)
    scale(values, factor)


def largest_gap(indices: Array) -> int:
    """The largest number of indices left out before any of ``indices`` (ascending); 0 for none."""
    return int(_gaps(indices).max(initial=0))


def pack_gaps(indices: Array, width: int, out: Array) -> None:
    """The gaps before ``indices``, ``width`` bits each, as one little-endian stream of bits (zero at its end).

    ``width`` is 0 (every gap is) to 63.
    """
    _check_width(width)
    gaps = _gaps(indices)
    if np.any(gaps < 0) or np.any(gaps >> np.int64(width)):
        raise InvalidArgument(f"indices must ascend with gaps below 2^{width}")
    bits = (gaps[:, None] >> np.arange(width, dtype=np.int64)) & 1
    out[:] = np.packbits(bits.astype(np.uint8).ravel(), bitorder="little")


def unpack_gaps(packed: Array, width: int, n: int, indices: Array) -> None:
    """The inverse of ``pack_gaps``; refuses a list that runs past ``n``."""
    _check_width(width)
    k = len(indices)
    bits = np.unpackbits(packed, count=k * width, bitorder="little").reshape(k, width)
    gaps = (bits.astype(np.int64) << np.arange(width, dtype=np.int64)).sum(axis=1)
    found = np.cumsum(gaps + 1) - 1
    require_in_range(found, n)
    indices[:] = found


def pack_bitmap(indices: Array, n: int, out: Array) -> None:
    """``out`` (ceil(n/8) bytes): bit i mod 8 of byte i div 8 is set for every i of ``indices``."""
    require_in_range(indices, n)
    flags = np.zeros(n, np.uint8)
    flags[indices] = 1
    out[:] = np.packbits(flags, bitorder="little")


def unpack_bitmap(bitmap: Array, n: int, indices: Array) -> None:
    """The inverse of ``pack_bitmap``; refuses a bitmap of another number of indices than ``indices`` holds."""
    found = np.flatnonzero(np.unpackbits(bitmap, count=n, bitorder="little"))
    if len(found) != len(indices):
        raise InvalidArgument(f"the bitmap must hold {len(indices)} indices, got {len(found)}")
    indices[:] = found.astype(index_dtype(n))


def _gaps(indices: Array) -> Array:
    return np.diff(indices.astype(np.int64), prepend=np.int64(-1)) - 1


def _check_width(width: int) -> None:
    if not 0 <= width <= 63:
        raise InvalidArgument(f"width must be in [0, 63], got {width}")
