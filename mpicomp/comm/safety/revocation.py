"""Communicators that everybody must leave when ranks are lost: whoever makes one says so here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made")

_listeners: list[Callable[[Any], None]] = []


def made(comm: Made) -> Made:
    """``comm``, of which those who are to know have been told."""
    for listener in _listeners:
        listener(comm)
    return comm


def listen(listener: Callable[[Any], None]) -> None:
    """Let ``listener`` know of every communicator made from now on."""
    _listeners.append(listener)


def leave(listener: Callable[[Any], None]) -> None:
    _listeners.remove(listener)
