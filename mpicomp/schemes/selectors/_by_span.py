"""What selectors share: how many of each span from a density, lists of indices."""

from __future__ import annotations

from typing import Any

from ...types import Array
from ..options import DENSITY, K

__all__ = ["DENSITY", "Counted", "K", "Listed", "Targeted"]


class Targeted:
    """A selector with a target: ``k`` elements of each span, or ``density`` of them as the schedule changes it."""

    def __init__(self, density: float, k: int | None) -> None:
        self.density, self.k = density, k

    def count(self, step: Any, span: int) -> int:
        """How many elements of a span are to be sent: at least one of any that there are."""
        start, stop = step.spans[span]
        n = stop - start
        target = self.density if self.k is None else min(1.0, self.k / max(1, n))
        return min(n, max(1, round(step.density(target, span) * n)))

    def targets(self, step: Any) -> list[int]:
        """The counts of all spans."""
        return [self.count(step, span) for span in range(len(step.spans))]


class Listed:
    """A selector whose selection is the list of indices itself, NaN and infinity first among them."""

    finds_nonfinite = True

    def expand(self, wire: Array, step: Any) -> Array:
        return wire

    def wire_like(self, step: Any) -> Array | None:
        """How many are selected is known only after selecting."""
        return None


class Counted(Targeted, Listed):
    """A selector that sends exactly its target, as exchanges need that count on it."""

    def counts(self, step: Any) -> list[int]:
        """The targets of all spans."""
        return self.targets(step)
