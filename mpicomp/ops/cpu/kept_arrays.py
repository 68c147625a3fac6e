"""Arrays of memory that earlier ones have left: the system clears every page that it hands out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._cpu import empty_long

LONG = 1 << 14  # elements of arrays whose memory is kept for the next ones


def empty(n: int, dtype: npt.DTypeLike) -> np.ndarray:
    return np.empty(n, dtype) if n < LONG else empty_long(n, np.dtype(dtype))


def zeros(n: int, dtype: npt.DTypeLike) -> np.ndarray:
    out = empty(n, dtype)
    out.fill(0)
    return out


def concatenate(arrays: list[np.ndarray], dtype: npt.DTypeLike) -> np.ndarray:
    out = empty(sum(map(len, arrays)), dtype)
    return np.concatenate(arrays, out=out) if arrays else out
