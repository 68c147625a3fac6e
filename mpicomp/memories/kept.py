"""Vectors that a memory keeps from step to step and hands out and takes back as state."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..values import Array


class Kept:
    """Named vectors of the gradient's size, zero at first; loaded ones go to its device at first use."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._arrays: dict[str, Array] = {}
        self._loaded: dict[str, np.ndarray] = {}

    def open(self, gradient: Array, ops: Any) -> dict[str, Array]:
        """The vectors by name, like ``gradient``."""
        for name in self._names:
            if name not in self._arrays:
                array = self._arrays[name] = ops.zeros(gradient.size, gradient.dtype)
                if name in self._loaded:
                    array[:] = ops.from_host(self._loaded.pop(name))
        return self._arrays

    def get(self, name: str) -> Array | None:
        """A vector, or None before the first step."""
        return self._arrays.get(name)

    def put(self, name: str, array: Array) -> None:
        """Keep another array under a name."""
        self._arrays[name] = array

    @property
    def empty(self) -> bool:
        """Whether no vector was ever put, opened or loaded."""
        return not self._arrays and not self._loaded

    def check(self, n: int) -> None:
        """Refuse saved vectors of another size than the gradient's."""
        for name, array in self._loaded.items():
            if array.size != n:
                raise InvalidArgument(f"the saved {name} has {array.size} elements, the gradients have {n}")

    def state(self, ops: Any) -> dict[str, np.ndarray]:
        here = {name: np.array(ops.to_host(array)) for name, array in self._arrays.items()}
        return {**self._loaded, **here}

    def load(self, state: dict[str, np.ndarray]) -> None:
        self._arrays.clear()
        self._loaded = {name: state[name] for name in self._names if name in state}
