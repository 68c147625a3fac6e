"""Arrays in host memory by NumPy: what the compiled module does not compile, and the other modules share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .arguments import Array, Bounds

INT32_MAX = 2**31 - 1
PIECE = 1 << 20  # elements in a piece of a long pass that is to leave room for other work in between


def index_dtype(n: int) -> np.dtype:
    """The integer type of indices into ``n`` elements: int32, or int64 above 2^31 - 1."""
    return np.dtype(np.int32 if n <= INT32_MAX else np.int64)


# ---- arrays on this device

def empty(n: int, dtype: npt.DTypeLike) -> Array:
    """An array of ``n`` elements, not initialised."""
    return np.empty(n, dtype)


def zeros(n: int, dtype: npt.DTypeLike) -> Array:
    """An array of ``n`` zeros."""
    return np.zeros(n, dtype)


def to_host(x: Array) -> np.ndarray:
    """The array in host memory (here: itself)."""
    return x


def from_host(x: np.ndarray) -> Array:
    """A host array on this device (here: itself)."""
    return x


def arange(n: int) -> Array:
    """The indices of ``n`` elements."""
    return np.arange(n, dtype=index_dtype(n))


def concatenate(arrays: list[Array], dtype: npt.DTypeLike) -> Array:
    """One array after the other; empty if there is none."""
    return np.concatenate(arrays, dtype=dtype) if arrays else np.empty(0, dtype)


def group_bounds(bounds: Array) -> Array:
    """``bounds``, an array of the host, on the device: looked at here, so that no operation has to ask for them again.

    The result is for reading only.
    """
    return bounds


# ---- index lists, magnitudes

def positions_of(indices: Array, bounds: list[int]) -> list[int]:
    """Number of ``indices`` (ascending) below each of ``bounds``."""
    # Bounds of the same type: NumPy would otherwise convert all indices.
    return np.searchsorted(indices, np.asarray(bounds, indices.dtype)).tolist()


def vouch(indices: Array, n: int, of: Array | None = None) -> Array:
    """The list itself, which the caller knows to ascend within ``[0, n)``, so that no operation validates it again.

    A list that is part ``of`` another is known to ascend if that one is.
    """
    return indices


def sorted_magnitudes(x: Array, spans: Bounds) -> list[np.ndarray]:
    """The bits of all magnitudes in each of ``spans``, ascending: integers in host memory, NaN all alike."""
    infinity = np.array(np.inf, x.dtype).view(f"i{x.itemsize}")
    return [np.sort(np.minimum(np.abs(x[start:stop]).view(infinity.dtype), infinity + 1)) for start, stop in spans]
