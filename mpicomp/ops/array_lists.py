"""Lists of a step's arrays: compared with those of the step before, by compiled code for NumPy's."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

import numpy as np

from .._util.once import Once
from .arguments import Array
from .extension import AVAILABLE

if TYPE_CHECKING or AVAILABLE:
    from . import _cpu

Value = TypeVar("Value")


class ArrayList(list[Array]):
    """Validated arrays of a device; ``once`` keeps results that follow from where they lie."""

    def __init__(self, arrays: Sequence[Array], once: Once) -> None:
        super().__init__(arrays)
        self.once = once

    def chosen(self, places: Sequence[int]) -> ArrayList:
        """The arrays at these places, which are the same in every call."""
        return ArrayList([self[i] for i in places], self.once("chosen", Once))


def derived(arrays: list[Array], key: Hashable, make: Callable[[], Value]) -> Value:
    """The result of ``make()``, which follows from where the arrays lie: kept as long as they come again."""
    return arrays.once(key, make) if isinstance(arrays, ArrayList) else make()


def total_size(arrays: list[Array]) -> int:
    """Number of elements of all arrays together."""
    return derived(arrays, "total", lambda: sum(array.size for array in arrays))


def same_arrays(refs: list[ref[Array]], shapes: list[tuple[int, ...]], arrays: list[Array]) -> bool:
    """Return True if the arrays are those of weak references, and still have their shapes."""
    if AVAILABLE:
        return _cpu.same_arrays(refs, shapes, arrays)
    return (len(refs) == len(arrays) and all(map(is_, [one() for one in refs], arrays))
            and [array.shape for array in arrays] == shapes)


class ArrayFacts:
    """Facts of a list of arrays that has been validated; keeps no array alive.

    Of NumPy's: dtypes, shapes and contiguity. Of a device's: which arrays they are, and their shapes. Nothing else of
    such an array can change.
    """

    def __init__(self, arrays: list[Array]) -> None:
        plain = [type(array) is np.ndarray for array in arrays]
        self._facts = _cpu.ArrayFacts(arrays) if AVAILABLE and all(plain) else None
        self._refs: list[ref[Array]] = []
        if self._facts is None and not any(plain):
            try:
                self._refs = [ref(array) for array in arrays]
            except TypeError:  # types that have none, whose lists are validated in every step
                return
            self._shapes, self._once = [array.shape for array in arrays], Once()

    def hold(self, arrays: list[Array], written: bool = False) -> bool:
        """Return True if ``arrays`` need no validation: they have the same facts (and are writable).

        False says nothing: equal dtypes that are other objects, and equal arrays of a device, never have them.
        """
        if self._facts is not None:
            return self._facts.hold(arrays, written)
        return bool(self._refs) and same_arrays(self._refs, self._shapes, arrays)

    def listed(self, arrays: list[Array], written: bool = False) -> list[Array] | None:
        """``arrays`` if they hold; those of a device as an `ArrayList`."""
        if not self.hold(arrays, written):
            return None
        return ArrayList(arrays, self._once) if self._refs else arrays


def adjacent(arrays: list[Array], starts: Sequence[int]) -> bool:
    """Return True if all arrays with elements are views of one base, each ``starts[i]`` elements after the first."""
    if AVAILABLE and type(arrays[0]) is np.ndarray:
        return _cpu.adjacent(arrays, starts)
    return derived(arrays, "adjacent", lambda: _adjacent(arrays, starts))


def _adjacent(arrays: list[Array], starts: Sequence[int]) -> bool:
    filled = [(array, start) for array, start in zip(arrays, starts, strict=True) if array.size]
    bases = [array.base for array, _ in filled]
    origins = {address(array) - start * array.dtype.itemsize for array, start in filled}
    return len(origins) == 1 and bases[0] is not None and all(base is bases[0] for base in bases)


def any_overlap(arrays: list[Array], vector: Array) -> bool:
    """Return True if any of the arrays has memory in common with ``vector``."""
    if AVAILABLE and type(vector) is np.ndarray:
        return _cpu.any_overlap(arrays, vector)
    key = "overlap", address(vector), vector.nbytes
    return derived(arrays, key, lambda: any(overlap(array, vector) for array in arrays))


def address(array: object) -> int:
    """Address of an array on the host or on its device; 0 if it has none, as in simulations."""
    if type(array) is np.ndarray:
        return array.__array_interface__["data"][0]
    interface: Any = getattr(array, "__cuda_array_interface__", None) or getattr(array, "__array_interface__", None)
    return interface["data"][0] if interface else 0


def overlap(a: Array, b: Array) -> bool:
    """Return True if two arrays have memory in common."""
    if type(a) is type(b) is np.ndarray:
        compiled = AVAILABLE and a.flags.c_contiguous and b.flags.c_contiguous
        return _cpu.any_overlap([a], b) if compiled else np.may_share_memory(a, b)
    begin, other = address(a), address(b)
    return begin < other + b.nbytes and other < begin + a.nbytes and begin != 0 != other
