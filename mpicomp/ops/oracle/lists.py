"""Ascending index lists: unions and sums, what they have in common, and how they are written in few bytes."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from ..arguments import Array, refused_lists, require_ascending, require_in_range
from ..host import concatenate, index_dtype
from .base import count_beyond, gather


def union(lists: list[Array], n: int) -> Array:
    """Ascending indices, each once, of all that are in any of ``lists``, which must ascend within ``[0, n)``."""
    _own_lengths(lists, n, filled=False)
    return np.unique(concatenate(lists, index_dtype(n)))


def add_lists(lists: list[Array], values: list[Array], n: int, filled: bool = False) -> tuple[Array, Array]:
    """The union of ``lists`` (at least one), and at each of its indices the sum of their ``values``, in their order.

    Sums begin with 0. Where lists may be ``filled`` up by ones at the index n, these count for nothing.
    """
    if len(lists) != len(values):
        raise InvalidArgument(f"values must be as many as lists, {len(lists)}, got {len(values)}")
    lengths = _own_lengths(lists, n, filled)
    lists = [one[:length] for one, length in zip(lists, lengths, strict=True)]
    indices = union(lists, n)
    sums = np.zeros(len(indices), values[0].dtype)
    for one, of, length in zip(lists, values, lengths, strict=True):
        sums[np.searchsorted(indices, one)] += of[:length]
    return indices, sums


def _own_lengths(lists: list[Array], n: int, filled: bool) -> list[int]:
    lengths = [filled_length(one, n) if filled else len(one) if ascends(one, n) else -1 for one in lists]
    if -1 in lengths:
        raise refused_lists(n, filled)
    return lengths


def restrict(lists: list[Array], values: list[Array], whole: Array,
             nonzero: list[bool]) -> tuple[tuple[Array, Array], ...]:
    """Entries of each list that ``whole`` also has, and their values; if ``nonzero``, without those of value zero.

    All lists ascend.
    """
    require_ascending(whole)
    kept = []
    for one, of, without_zeros in zip(lists, values, nonzero, strict=True):
        require_ascending(one)
        wanted = np.isin(one, whole) & ((of != 0) | (not without_zeros))
        kept.append((one[wanted], of[wanted]))
    return tuple(kept)


def common(a: Array, b: Array) -> tuple[Array, Array]:
    """Positions in ``a`` and in ``b`` (ascending, distinct) of the entries that both have; int64."""
    require_ascending(a)
    require_ascending(b)
    _, in_a, in_b = np.intersect1d(a, b, assume_unique=True, return_indices=True)
    return in_a.astype(np.int64), in_b.astype(np.int64)


def ascends(indices: Array, n: int) -> bool:
    """Return True if ``indices`` ascend within ``[0, n)``, none twice."""
    return bool(np.all((indices >= 0) & (indices < n)) and np.all(indices[1:] > indices[:-1]))


def filled_length(indices: Array, n: int) -> int:
    """Number of ``indices`` that ascend within ``[0, n)`` if only the filling ``n`` follows them; else -1."""
    own = indices[indices != n]
    return len(own) if ascends(own, n) and np.all(indices[len(own) :] == n) else -1


def gather_counted(memory: Array | None, grad: Array, indices: Array, values: Array, limit: float = np.inf) -> int:
    """``values[j] = u[indices[j]]``, and how many of these are not below ``limit`` in magnitude, NaN included."""
    gather(memory, grad, indices, values)
    return count_beyond(None, values, limit)


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


def unpack_gaps(packed: Array, width: int, n: int, indices: Array, wait: bool = True) -> None:
    """The inverse of ``pack_gaps``; refuses a list that runs past ``n``.

    Without ``wait`` a device is not asked whether it does: then ``indices`` do not ascend within ``[0, n)``, and who
    looks at them refuses them.
    """
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


def unpack_bitmap(bitmap: Array, n: int, indices: Array, wait: bool = True) -> None:
    """The inverse of ``pack_bitmap``; refuses a bitmap of another number of indices than ``indices`` holds.

    ``wait`` as in ``unpack_gaps``.
    """
    found = np.flatnonzero(np.unpackbits(bitmap, count=n, bitorder="little"))
    if len(found) != len(indices):
        raise InvalidArgument(f"the bitmap must hold {len(indices)} indices, got {len(found)}")
    indices[:] = found.astype(index_dtype(n))


def _gaps(indices: Array) -> Array:
    return np.diff(indices.astype(np.int64), prepend=np.int64(-1)) - 1


def _check_width(width: int) -> None:
    if not 0 <= width <= 63:
        raise InvalidArgument(f"width must be in [0, 63], got {width}")
