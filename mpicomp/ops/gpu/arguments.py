"""Validation of arguments of CUDA launchers: dtype, shape, and index lists that stay inside their vector."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import BufferRefused, InvalidArgument
from ..arguments import dtype_name
from .cuda_runtime import INDEX, Array, blocks_for, launch, to_host, xp


def kind_of(array: Array, name: str, choices: dict[str, str]) -> str:
    """The CUDA type of ``array``'s elements, which must be one of ``choices``."""
    kind = choices.get(dtype_name(array.dtype))
    if kind is None:
        raise InvalidArgument(f"{name} must be of dtype {', '.join(choices)}, got {array.dtype}")
    check(array, name, array.dtype)
    return kind


def check(array: Array, name: str, dtype: npt.DTypeLike, n: int | None = None) -> None:
    if array.dtype != dtype:
        raise InvalidArgument(f"{name} must be of dtype {dtype}, got {array.dtype}")
    if array.ndim != 1:
        raise InvalidArgument(f"{name} must have 1 dimension, got {array.ndim}")
    if n is not None and array.size != n:
        raise InvalidArgument(f"{name} must have {n} elements, got {array.size}")
    if not array.flags.c_contiguous:
        raise BufferRefused(f"{name} must be contiguous, got a strided array: pass cupy.ascontiguousarray(...)")


def check_length(n: int, indices: Array | None = None) -> None:
    """Refuse a negative length, and one that the type of ``indices`` cannot reach."""
    if n < 0:
        raise InvalidArgument(f"n must be at least 0, got {n}")
    if indices is not None and n >> (8 * indices.dtype.itemsize - 1):  # np.iinfo takes long, in every step
        raise InvalidArgument(f"indices must be int64 for n = {n}")


def memory_or_null(memory: Array | None, grad: Array) -> Array:
    """Argument of a launch for ``memory``: the array, or a null pointer."""
    if memory is None:
        return np.uintp(0)
    check(memory, "memory", grad.dtype, grad.size)
    return memory


MOST_TELLING = 1024  # blocks that tell the host something each
DESCENDS = 2**63  # as a gap, from here on: an index is not above the one before it


class Known(NamedTuple):
    """Properties of a list of strictly ascending indices, none negative."""

    below: int
    largest_gap: int | None = None


# Lists that were made or examined here, by id: selections are plain arrays, which parts of schemes index with, so what
# is known of them is beside them (docs/architecture.md). Nothing in this package writes into a list that is known.
_known: dict[int, tuple[weakref.ref[Array], Known]] = {}


def remember(indices: Array, below: int | None, largest_gap: int | None = None) -> Array:
    """Record that a list ascends ``below`` a number, so that no operation waits for the device to see it again.

    If ``below`` is None, the list has been overwritten, and nothing is known any more. Returns the list.
    """
    key = id(indices)
    if below is None:
        _known.pop(key, None)
    else:
        _known[key] = weakref.ref(indices, lambda _: _known.pop(key, None)), Known(below, largest_gap)
    return indices


def known_of(indices: Array) -> Known | None:
    """The recorded properties of this list, if any."""
    found = _known.get(id(indices))
    return found[1] if found is not None and found[0]() is indices else None


def ascends_below(indices: Array, n: int) -> bool:
    """True if the list is known to ascend below ``n``."""
    known = known_of(indices)
    return known is not None and known.below <= n


def require_indices(indices: Array, n: int, *, ascending: bool = False, name: str = "indices") -> None:
    """Refuse indices outside [0, n) before anything is read or written through them; waits for the device, unless
    this list has been vouched for.
    """
    if ascends_below(indices, n):
        return
    outside, descends = examined(indices)
    if indices.size and outside >= n:
        raise InvalidArgument(f"{name} must be in [0, {n}), got {np.uint64(outside).astype(np.int64)}")
    if ascending and descends:
        raise InvalidArgument(f"{name} must be strictly ascending")
    if not descends:
        remember(indices, n)


def examined(indices: Array) -> tuple[int, bool]:
    """The largest index, a negative one counting as 2^64 less so much, and whether one is not above the one before it;
    waits for the device.
    """
    kernel = f"check_indices<{INDEX[dtype_name(indices.dtype)]}>"
    last, gaps = told("gather", kernel, 2, indices.size, indices, np.int64(indices.size))
    return int(last.max(initial=0)), not ascended(gaps)


def told(family: str, name: str, count: int, size: int, *args: object) -> np.ndarray:
    """Numbers that the blocks of a kernel over ``size`` elements write, in ``count`` rows; waits for the device."""
    blocks = min(MOST_TELLING, blocks_for(size))
    found = xp().empty(count * blocks, np.uint64)
    launch(family, name, blocks, *args, found)
    return to_host(found).reshape(blocks, count).T


def ascended(gaps: np.ndarray) -> bool:
    """Return True if a list with these largest gaps, one per block, ascends from 0 on."""
    return int(gaps.max(initial=0)) < DESCENDS


def keep_gap(indices: Array, gaps: np.ndarray) -> None:
    """Record the largest gap of a list that ascends: the next operation packs it."""
    largest = int(gaps.max(initial=0))
    if largest < DESCENDS:
        known = known_of(indices)
        remember(indices, known.below if known else 2**64, largest)


def bits_dtype(grad: Array) -> np.dtype:
    """The integer type in which kernels order magnitudes: as wide as an element."""
    return np.dtype(f"int{8 * grad.dtype.itemsize}")
