"""How long work says where it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]  # what is being done, and the share that is done, from 0 to 1


def silent(text: str, done: float) -> None:
    """Where nobody listens."""


def part_of(progress: Progress, begin: float, end: float) -> Progress:
    """For work that is a part of another, from its share ``begin`` to ``end``."""
    return lambda text, done: progress(text, begin + done * (end - begin))
