"""mpicomp.ops.gpu for tests that hold NumPy arrays: copied to the GPU for each call, and back after it.

What codes are read from (`gpu.coded`) stays there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import numpy as np

from mpicomp.ops import gpu

OF_HOST = ("group_bounds",)  # which takes an array of the host


class OnGPU:
    """Every operation of `gpu`; ``xp`` is CuPy, or what a test puts in its place."""

    def __init__(self, xp: Any = None) -> None:
        if xp is None:
            import cupy as xp
        self._xp = xp
        self._operations: dict[Callable, Callable] = {}  # asked for twice, an operation is the same

    def __getattr__(self, name: str) -> Any:
        thing = getattr(gpu, name)
        if not callable(thing) or isinstance(thing, type) or name in OF_HOST:
            return thing
        if thing not in self._operations:
            self._operations[thing] = self._around(thing)
        return self._operations[thing]

    def _around(self, operation: Callable) -> Callable:
        @wraps(operation)
        def call(*arguments: Any, **options: Any) -> Any:
            there: dict[int, tuple[np.ndarray, Any]] = {}  # by id: one array given twice is one array there, too
            try:
                given = {name: self._there(one, there) for name, one in options.items()}
                return self._back(operation(*[self._there(one, there) for one in arguments], **given), there)
            finally:
                for here, copy in there.values():
                    if here.flags.writeable:
                        here[...] = self._xp.asnumpy(copy)

        return call

    def _there(self, thing: Any, there: dict[int, tuple[np.ndarray, Any]]) -> Any:
        if isinstance(thing, list | Iterator):
            return [self._there(one, there) for one in thing]
        if isinstance(thing, dict):
            return {name: self._there(one, there) for name, one in thing.items()}
        if not isinstance(thing, np.ndarray):
            return thing
        if id(thing) not in there:
            there[id(thing)] = thing, self._copy(thing)
        return there[id(thing)][1]

    def _copy(self, array: np.ndarray) -> Any:
        """Strided where the array is, for tests of what is refused."""
        if array.flags.c_contiguous or array.ndim != 1:
            return self._xp.asarray(array)
        copy = self._xp.empty(2 * array.size, array.dtype)[::2]
        copy[...] = self._xp.asarray(np.ascontiguousarray(array))
        return copy

    def _back(self, result: Any, there: dict[int, tuple[np.ndarray, Any]]) -> Any:
        if isinstance(result, tuple):
            parts = [self._back(one, there) for one in result]
            return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
        given = next((here for here, copy in there.values() if copy is result), None)
        if given is not None:
            return given
        return self._xp.asnumpy(result) if isinstance(result, self._xp.ndarray) else result
