"""Selectors with a target per span, and selectors whose selection is a list of indices."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ...types import Array
from ..interfaces import Selector, StepContext
from ..options import DENSITY, K
from ..values import Value

__all__ = ["DENSITY", "Counted", "K", "Listed", "Targeted", "by_densities"]


def by_densities(key: Hashable, make: Callable[[], Value], ctx: StepContext) -> Value:
    """The result of ``make()``, which follows from layout and densities: kept as long as these stay."""
    once = ctx.of_layout if ctx.number >= ctx.schedule.settled_from else ctx.once
    return once(key, make)


class Targeted:
    """A target: ``k`` elements of each span, or ``density`` of them as the schedule changes it."""

    by_magnitude = per_span = True

    def __init__(self, density: float, k: int | None) -> None:
        self.density, self.k = density, k
        self.nominal_density = density if k is None else 0.0

    def count(self, ctx: StepContext, span: int) -> int:
        """Number of a span's elements to send: at least one unless the span is empty."""
        start, stop = ctx.spans[span]
        n = stop - start
        target = self.density if self.k is None else min(1.0, self.k / max(1, n))
        return min(n, max(1, round(ctx.density(target, span) * n)))

    def targets(self, ctx: StepContext) -> list[int]:
        """The counts of all spans."""
        return by_densities(self, lambda: [self.count(ctx, span) for span in range(len(ctx.spans))], ctx)


class Listed(Selector):
    """A selector whose selection is the list of indices itself, NaN and infinity first among them."""

    finds_nonfinite = True
    broadcasts = True

    def expand(self, wire: Array, ctx: StepContext) -> Array:
        return wire


class Counted(Targeted, Listed):
    """A selector that sends exactly its target, as exchanges need that count on it."""

    counted = True

    def counts(self, ctx: StepContext) -> list[int]:
        """The targets of all spans."""
        return self.targets(ctx)
