"""Vectors that error memories keep from step to step."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from ...ops.protocol import Ops
from ...types import Array
from ..interfaces import Memory
from ..values import Span, State


class Kept:
    """Named vectors of the gradient's size, zero at first; loaded ones go to its device at first use."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._arrays: dict[str, Array] = {}
        self._loaded: State = {}
        self._rooms: dict[str, Array] = {}
        self._spans: list[Span] = []  # of what is set aside
        self._aside: list[tuple[str, int, Array]] = []

    def open(self, gradient: Array, ops: Ops) -> dict[str, Array]:
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

    def loaded(self, name: str) -> np.ndarray | None:
        """A vector on the host that was loaded and not used yet."""
        return self._loaded.get(name)

    def put(self, name: str, array: Array) -> None:
        """Keep another array under a name."""
        self._arrays[name] = array

    def room(self, name: str, gradient: Array, ops: Ops) -> Array:
        """An array like ``gradient`` for a value of the current step, such as a vector's successor; never saved."""
        room = self._rooms.get(name)
        if room is None or room.size != gradient.size or room.dtype != gradient.dtype:
            room = self._rooms[name] = ops.zeros(gradient.size, gradient.dtype)
        return room

    def advance(self, name: str) -> None:
        """Let a vector and its successor, the ``room`` of its name, change places."""
        self._arrays[name], self._rooms[name] = self._rooms[name], self._arrays[name]

    def set_aside(self, spans: list[Span]) -> None:
        """Empty some spans of the vectors, until ``put_back``."""
        self._spans = spans
        for name, array in {**self._loaded, **self._arrays}.items():
            for start, stop in spans:
                self._aside.append((name, start, array[start:stop].copy()))
                array[start:stop] = 0

    def put_back(self, ops: Ops) -> None:
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
        """True if no vector was ever put, opened or loaded."""
        return not self._arrays and not self._loaded

    def check(self, n: int, dtype: np.dtype, whose: str = "the gradients") -> None:
        """Refuse saved vectors that have not ``n`` elements of ``dtype``."""
        for name, array in self._loaded.items():
            if array.size != n:
                raise InvalidArgument(f"the saved {name} has {array.size} elements, {whose} have {n}")
            if array.dtype != dtype:
                raise InvalidArgument(f"the saved {name} is {array.dtype}, the gradients are computed in {dtype}: go "
                                      "on with gradients of the saved dtype, or begin anew without the state")

    def state(self, ops: Ops) -> State:
        return {name: np.array(ops.to_host(array)) for name, array in {**self._loaded, **self._arrays}.items()}

    def load(self, state: State) -> None:
        self._arrays.clear()
        self._loaded = {name: state[name] for name in self._names if name in state}


class Keeping:
    """The verbs of a part that keeps vectors: saved, loaded, and emptied in some spans for a step.

    Parameters
    ----------
    names : str
        Of the vectors.
    """

    def __init__(self, *names: str) -> None:
        self._kept = Kept(*names)

    def set_aside(self, spans: list[Span]) -> None:
        """Empty some spans of the vectors, until ``put_back``."""
        self._kept.set_aside(spans)

    def put_back(self, ops: Ops) -> None:
        """Fill the spans with what was set aside."""
        self._kept.put_back(ops)

    def state(self, ops: Ops) -> State:
        return self._kept.state(ops)

    def load(self, state: State) -> None:
        self._kept.load(state)


class ErrorMemory(Keeping, Memory):
    """A memory with a ``residual``, the unsent part, and perhaps more vectors, which its class names as
    ``required_state``: a state of any step but the first must have them.
    """

    stateful = True
    required_state: tuple[str, ...] = ("residual",)

    def __init__(self) -> None:
        super().__init__(*self.required_state)

    def squared_norm(self, ops: Ops) -> float:
        """Squared norm of the residual, also of a loaded one; 0 before the first step."""
        residual = self._kept.get("residual")
        residual = self._kept.loaded("residual") if residual is None else residual
        return 0.0 if residual is None else ops.squared_norm(residual)

    def check(self, n: int, dtype: np.dtype) -> None:
        self._kept.check(n, dtype)
