"""Device of an app's computation: the host with NumPy, or this rank's GPU with CuPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def on_device(comm: Any, name: str) -> Callable[[Any], Any]:
    """Return a function that moves NumPy arrays to device ``"cpu"`` or ``"gpu"`` (collective: ranks of a node take its
    GPUs in turn).

    Raises
    ------
    InvalidArgument, MissingExtra
        On every rank: there is no GPU, or no CuPy.
    """
    if name == "cpu":
        return lambda array: array
    from mpicomp.bench.devices import choose_device, to_device

    choose_device(comm)
    return lambda array: to_device(array, name)
