"""What error memories share: vectors kept from step to step, handed out and taken back as state."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import InvalidArgument
from ...types import Array, Compensated, Sent


class Kept:
    """Named vectors of the gradient's size, zero at first; loaded ones go to its device at first use."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._arrays: dict[str, Array] = {}
        self._loaded: dict[str, np.ndarray] = {}
        self._spans: list[tuple[int, int]] = []  # of what is set aside
        self._aside: list[tuple[str, int, Array]] = []

    def open(self, gradient: Array, ops: Any) -> dict[str, Array]:
        """The vectors by name, like ``gradient``."""
        for name in self._names:
            if name not in self._arrays:
                self._check_dtype(name, gradient.dtype)
                array = self._arrays[name] = ops.zeros(gradient.size, gradient.dtype)
                if name in self._loaded:
                    array[:] = ops.from_host(self._loaded.pop(name))
        return self._arrays

    def _check_dtype(self, name: str, dtype: Any) -> None:
        """Refuse to round a saved vector to another dtype."""
        saved = self._loaded.get(name)
        if saved is not None and saved.dtype != dtype:
            raise InvalidArgument(f"the saved {name} is {saved.dtype}, the gradients are computed in {dtype}: go on "
                                  "with gradients of the saved dtype, or begin anew without the state")

    def get(self, name: str) -> Array | None:
        """A vector, or None before the first step."""
        return self._arrays.get(name)

    def put(self, name: str, array: Array) -> None:
        """Keep another array under a name."""
        self._arrays[name] = array

    def set_aside(self, spans: list[tuple[int, int]]) -> None:
        """Empty some spans of the vectors, until ``put_back``."""
        self._spans = spans
        for name, array in {**self._loaded, **self._arrays}.items():
            for start, stop in spans:
                self._aside.append((name, start, array[start:stop].copy()))
                array[start:stop] = 0

    def put_back(self, ops: Any) -> None:
        """Fill the spans with what was set aside, whatever a step has written there; zero where nothing was kept."""
        vectors = {**self._loaded, **self._arrays}
        for array in vectors.values():
            for start, stop in self._spans:
                array[start:stop] = 0
        for name, start, part in self._aside:
            array = vectors[name]
            array[start : start + part.size] = part if isinstance(array, np.ndarray) else ops.from_host(part)
        self._spans, self._aside = [], []

    @property
    def empty(self) -> bool:
        """Whether no vector was ever put, opened or loaded."""
        return not self._arrays and not self._loaded

    def check(self, n: int, whose: str = "the gradients") -> None:
        """Refuse saved vectors of another size than the gradient's."""
        for name, array in self._loaded.items():
            if array.size != n:
                raise InvalidArgument(f"the saved {name} has {array.size} elements, {whose} have {n}")

    def state(self, ops: Any) -> dict[str, np.ndarray]:
        here = {name: np.array(ops.to_host(array)) for name, array in self._arrays.items()}
        return {**self._loaded, **here}

    def load(self, state: dict[str, np.ndarray]) -> None:
        self._arrays.clear()
        self._loaded = {name: state[name] for name in self._names if name in state}


class ErrorMemory:
    """A memory with a ``residual``, what was not sent, and perhaps more vectors, which its class names as ``keeps``: a
    state of any step but the first must have them.
    """

    remembers = True
    silences = False
    takes_momentum = False  # workers take it before they hold back, so the optimizer must have none
    diverges = False  # ranks do not get the same result, so they do not have the same model
    keeps: tuple[str, ...] = ("residual",)

    def __init__(self) -> None:
        self._kept = Kept(*self.keeps)

    def silent(self, number: int) -> bool:
        return False

    def local(self, u: Compensated, sent: Sent, step: Any) -> Array | None:
        return None

    def squared_norm(self, ops: Any) -> float:
        """Of the residual; 0 before the first step."""
        residual = self._kept.get("residual")
        return 0.0 if residual is None else ops.squared_norm(residual)

    def check(self, n: int) -> None:
        """Refuse a loaded state of vectors that have not ``n`` elements."""
        self._kept.check(n)

    def set_aside(self, spans: list[tuple[int, int]]) -> None:
        """Hold back nothing of some spans, and have nothing of them sent, until ``put_back``."""
        self._kept.set_aside(spans)

    def put_back(self, ops: Any) -> None:
        self._kept.put_back(ops)

    def state(self, ops: Any) -> dict[str, np.ndarray]:
        return self._kept.state(ops)

    def load(self, state: dict[str, np.ndarray]) -> None:
        self._kept.load(state)
