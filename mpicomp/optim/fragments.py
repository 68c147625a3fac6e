"""Fragments of a model for DiLoCo, and a worker's parameters on whatever device they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from ..comm.nonblocking import Pending
from ..errors import InvalidArgument
from ..ops import ops_for
from .optimizers import SGD, Arrays

State = dict[str, object]
HALF = ("float16", "bfloat16")  # whose outer parameters are float32


class Parameters(Protocol):
    """A worker's named parameters, wherever they are."""

    names: list[str]

    def read(self, name: str) -> np.ndarray:
        """The values on the host, in the dtype of the outer steps; perhaps the parameter's own memory."""

    def write(self, name: str, values: np.ndarray) -> None:
        """Overwrite a parameter."""

    def holds(self, name: str, values: np.ndarray) -> bool:
        """True if a parameter is what ``write`` of these values makes of it."""


class InMemory:
    """Parameters that are arrays of NumPy or CuPy."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays, self.names = dict(arrays), list(arrays)

    def read(self, name: str) -> np.ndarray:
        array = self._arrays[name]
        values: np.ndarray = ops_for(array).to_host(array)
        return values.astype(np.float32) if values.dtype.name in HALF else values

    def write(self, name: str, values: np.ndarray) -> None:
        array = self._arrays[name]
        array[...] = values if isinstance(array, np.ndarray) else ops_for(array).from_host(values)

    def holds(self, name: str, values: np.ndarray) -> bool:
        array = self._arrays[name]
        host = ops_for(array).to_host(array)
        return np.array_equal(host, values.astype(host.dtype))


class Fragment:
    """Some of the parameters, exchanged together."""

    def __init__(self, names: list[str], phase: int, worker: Parameters, momentum: float) -> None:
        self.phase = phase
        self.rounds = 0  # outer steps done
        self.started = 0  # the inner step in which the exchange in flight began
        # The common parameters, after the last outer step.
        self.theta = {name: np.array(worker.read(name), order="C") for name in names}
        # This worker's difference to them; the mean of all workers' after an exchange.
        self.delta = {name: np.empty_like(value) for name, value in self.theta.items()}
        self.size = sum(value.size for value in self.theta.values())
        self.optimizer = SGD(self.theta, momentum=momentum, nesterov="yes")
        self.pending: Pending | None = None  # the exchange in flight
        self.arrived = False  # the mean is in ``delta``, and its outer step is still to come
        # Statistics of the last exchange.
        self.outcome: dict[str, float] = {"skipped": False, "payload_bits": 0.0, "density": 0.0}
        self.before: State | None = None  # of the reducer, before an exchange that ranks may not survive

    def is_due(self, step: int, every: int) -> bool:
        """True if the exchange begins after inner step ``step``, counted from 1."""
        return self.pending is None and step >= self.phase and (step - self.phase) % every == 0


def divided(sizes: Mapping[str, int], fragments: int) -> list[list[str]]:
    """Names of arrays in ``fragments`` groups of neighbours, of about equal size.

    Raises
    ------
    InvalidArgument
        There are fewer arrays than fragments.

    >>> divided({"a": 3, "b": 3, "c": 1, "d": 5}, 2)
    [['a', 'b'], ['c', 'd']]
    """
    if not sizes or fragments > len(sizes):
        raise InvalidArgument(f"fragments must be at most the number of parameters, {len(sizes)}, got {fragments}")
    groups: list[list[str]] = [[]]
    total, done = sum(sizes.values()), 0
    for place, (name, size) in enumerate(sizes.items()):
        missing, full = fragments - len(groups), done + size / 2 > total * len(groups) / fragments
        if groups[-1] and missing and (full or len(sizes) - place == missing):
            groups.append([])
        groups[-1].append(name)
        done += size
    return groups
