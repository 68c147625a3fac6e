"""Launchers that copy many arrays into one vector, and back; see :mod:`..reference.many`."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..cuda_runtime import PIECE, WORD, Array, addresses, blocks_for, launch, on_device, xp
from ..reference.many import require_total
from .arguments import check


@on_device
def pack(arrays: list[Array], flat: Array) -> None:
    _move(arrays, flat, into=True)


@on_device
def unpack(flat: Array, arrays: list[Array]) -> None:
    _move(arrays, flat, into=False)


def _move(arrays: list[Array], flat: Array, *, into: bool) -> None:
    """One launch where all are of one dtype and contiguous; else CuPy copies them one by one."""
    check(flat, "flat", flat.dtype)
    require_total(arrays, flat)
    if any(array.dtype != flat.dtype or not array.flags.c_contiguous for array in arrays):
        at = 0
        for array in arrays:
            part = flat[at : at + array.size].reshape(array.shape)
            target, origin = (part, array) if into else (array, part)
            target[...] = origin
            at += array.size
        return
    table = _table(addresses(arrays), tuple(array.size for array in arrays), xp())
    count, name = np.int64(len(arrays)), f"move_arrays<{WORD[flat.dtype.itemsize]}, {str(into).lower()}>"
    launch("many", name, blocks_for(flat.size, PIECE), table[: len(arrays)], table[len(arrays) :], count,
           np.int64(flat.size), flat)


@lru_cache(maxsize=64)  # where gradients keep their places, the table stays on the device
def _table(begins: tuple[int, ...], sizes: tuple[int, ...], module: object) -> Array:
    """The arrays' addresses, then the bounds of their places in the vector."""
    return xp().asarray(np.array([*begins, 0, *np.cumsum(sizes)], np.int64))
