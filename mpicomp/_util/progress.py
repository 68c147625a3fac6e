"""Progress reports of long work: a callable that takes the current action and the share done."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]  # the current action, and the share of the work that is done, from 0 to 1


def silent(text: str, done: float) -> None:
    """Report nothing."""


def part_of(progress: Progress, begin: float, end: float) -> Progress:
    """Progress of work that makes up the share from ``begin`` to ``end`` of a larger one."""
    return lambda text, done: progress(text, begin + done * (end - begin))
