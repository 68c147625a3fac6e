"""Registry of new communicators, for the code that revokes them all when ranks are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mpi4py import MPI

C = TypeVar("C", bound="MPI.Comm")

_listeners: list[Callable[[MPI.Comm], None]] = []


def announce(comm: C) -> C:
    """Report a new communicator to all listeners; return it."""
    for listener in _listeners:
        listener(comm)
    return comm


def listen(listener: Callable[[MPI.Comm], None]) -> None:
    """Report every communicator made from now on to ``listener``."""
    _listeners.append(listener)


def leave(listener: Callable[[MPI.Comm], None]) -> None:
    """Report to ``listener`` no more."""
    _listeners.remove(listener)
