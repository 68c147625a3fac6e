"""Launchers that copy many arrays into one vector, and back; see :mod:`..oracle.many`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arguments import require_total
from ..array_lists import derived, total_size
from .arguments import check, kind_of, require_indices
from .base import scatter
from .cuda_runtime import INDEX, REAL, WORD, Array, addresses, blocks_for, kept_on_device, launch, on_device, place, xp
from .cuda_runtime import PIECE as PIECE_OF_BLOCK


@on_device
def pack(arrays: list[Array], flat: Array) -> None:
    _move(arrays, flat, into=True)


@on_device
def unpack(flat: Array, arrays: list[Array]) -> None:
    _move(arrays, flat, into=False)


@on_device
def unpack_sparse(indices: Array, values: Array, arrays: list[Array]) -> None:
    i, n, k = kind_of(indices, "indices", INDEX), total_size(arrays), np.int64(indices.size)
    kind_of(values, "values", REAL)
    check(values, "values", values.dtype, indices.size)
    require_indices(indices, n, ascending=True)
    if not _as_they_are(arrays, values):
        flat = xp().zeros(n, values.dtype)
        scatter(flat, indices, values)
        _move(arrays, flat, into=False)
        return
    name, scalars = f"move_sparse<{WORD[values.dtype.itemsize]}, {i}>", (np.int64(len(arrays)), np.int64(n))
    launch("many", name, blocks_for(n, PIECE_OF_BLOCK), *_table_of(arrays), *scalars, indices, values, k)


def _as_they_are(arrays: list[Array], flat: Array) -> bool:
    """Return True if a kernel may copy between these arrays and elements of ``flat``."""
    dtype = flat.dtype
    return derived(arrays, ("as they are", dtype), lambda: all(
        array.dtype == dtype and array.flags.c_contiguous for array in arrays))


def _table_of(arrays: list[Array]) -> tuple[Array, Array]:
    """The arrays' addresses, and the bounds of their places in the vector."""
    return derived(arrays, ("table", *place()), lambda: _halves(arrays))


def _halves(arrays: list[Array]) -> tuple[Array, Array]:
    table = _table(addresses(arrays), [array.size for array in arrays])
    return table[: len(arrays)], table[len(arrays) :]


def _move(arrays: list[Array], flat: Array, *, into: bool) -> None:
    """One launch where all are of one dtype and contiguous; else CuPy copies them one by one."""
    check(flat, "flat", flat.dtype)
    require_total(total_size(arrays), flat)
    if not _as_they_are(arrays, flat):
        at = 0
        for array in arrays:
            part = flat[at : at + array.size].reshape(array.shape)
            target, origin = (part, array) if into else (array, part)
            target[...] = origin
            at += array.size
        return
    count, name = np.int64(len(arrays)), f"move_arrays<{WORD[flat.dtype.itemsize]}, {str(into).lower()}>"
    launch("many", name, blocks_for(flat.size, PIECE_OF_BLOCK), *_table_of(arrays), count, np.int64(flat.size), flat)


@kept_on_device
def _table(begins: Sequence[int], sizes: Sequence[int]) -> Array:
    """The arrays' addresses, then the bounds of their places in the vector."""
    return xp().asarray(np.array([*begins, 0, *np.cumsum(sizes)], np.int64))
