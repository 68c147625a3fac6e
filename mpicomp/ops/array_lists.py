"""Comparisons of a step's list of arrays, compiled for NumPy arrays: a Python call per array takes longer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .arguments import Array
from .extension import AVAILABLE

if TYPE_CHECKING or AVAILABLE:
    from . import _cpu


class ArrayFacts:
    """Dtypes, shapes and contiguity of a list of arrays that has been validated."""

    def __init__(self, arrays: list[Array]) -> None:
        plain = AVAILABLE and all(type(array) is np.ndarray for array in arrays)
        self._facts = _cpu.ArrayFacts(arrays) if plain else None

    def hold(self, arrays: list[Array], written: bool = False) -> bool:
        """Return True if ``arrays`` need no validation: they have the same facts (and are writable).

        False says nothing: arrays of other libraries, and equal dtypes that are other objects, never have them.
        """
        return self._facts is not None and self._facts.hold(arrays, written)


def adjacent(arrays: list[Array], starts: Sequence[int]) -> bool:
    """Return True if all arrays with elements are views of one base, each ``starts[i]`` elements after the first."""
    if AVAILABLE and type(arrays[0]) is np.ndarray:
        return _cpu.adjacent(arrays, starts)
    filled = [(array, start) for array, start in zip(arrays, starts, strict=True) if array.size]
    bases = [array.base for array, _ in filled]
    origins = {address(array) - start * array.dtype.itemsize for array, start in filled}
    return len(origins) == 1 and bases[0] is not None and all(base is bases[0] for base in bases)


def any_overlap(arrays: list[Array], vector: Array) -> bool:
    """Return True if any of the arrays has memory in common with ``vector``."""
    if AVAILABLE and type(vector) is np.ndarray:
        return _cpu.any_overlap(arrays, vector)
    return any(overlap(array, vector) for array in arrays)


def address(array: object) -> int:
    """Address of an array on the host or on its device; 0 if it has none, as in simulations."""
    if type(array) is np.ndarray:
        return array.__array_interface__["data"][0]
    interface: Any = getattr(array, "__cuda_array_interface__", None) or getattr(array, "__array_interface__", None)
    return interface["data"][0] if interface else 0


def overlap(a: Array, b: Array) -> bool:
    """Return True if two arrays have memory in common."""
    if type(a) is type(b) is np.ndarray:
        return np.may_share_memory(a, b)  # compares begins and ends
    begin, other = address(a), address(b)
    return begin < other + b.nbytes and other < begin + a.nbytes and begin != 0 != other
