"""Arrays of NumPy and CuPy, and parts of lists of indices."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .ops.arguments import Array as Array
from .ops.index_lists import Part as Part
from .ops.index_lists import joined as joined
from .ops.index_lists import parts_of as parts_of


@lru_cache(64)
def dtype_name(dtype: np.dtype) -> str:
    """Name of a dtype, which NumPy works out anew at every use."""
    return dtype.name


def address(array: object) -> int:
    """Address of an array on the host or on its device; 0 if it has none, as in simulations."""
    if type(array) is np.ndarray:
        return array.__array_interface__["data"][0]
    interface = getattr(array, "__cuda_array_interface__", None) or getattr(array, "__array_interface__", None)
    return interface["data"][0] if interface else 0


def overlap(a: Array, b: Array) -> bool:
    """True if two arrays have memory in common."""
    if type(a) is type(b) is np.ndarray:
        return np.may_share_memory(a, b)  # compares begins and ends
    begin, other = address(a), address(b)
    return begin < other + b.nbytes and other < begin + a.nbytes and begin != 0 != other
