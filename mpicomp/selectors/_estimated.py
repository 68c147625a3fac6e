"""What selectors share that estimate the threshold their target needs, instead of sorting."""

from __future__ import annotations

from abc import abstractmethod
from math import inf
from typing import Any

from ..values import Array, Compensated
from ._by_span import Listed, Targeted, select_by_span


class Estimated(Targeted, Listed):
    """A selector that estimates, asked only for some of a span; how many elements it gives varies.

    NaN and infinity are found first, as exact selections do: an estimate that they spoil is not used.
    """

    def select(self, u: Compensated, step: Any) -> Array:
        return select_by_span(u, step, lambda part, span: self._of_span(part, self.count(step, span), step))

    @abstractmethod
    def pick(self, u: Compensated, target: int, step: Any) -> Array:
        """About ``target`` of the elements of a span, fewer than it has."""

    def _of_span(self, u: Compensated, target: int, step: Any) -> Array:
        return step.ops.arange(u.n) if target == u.n else self.pick(u, target, step)


def largest_of(u: Compensated, candidates: Array, target: int, ops: Any) -> Array:
    """The exact selection of ``target`` among candidates (ascending), which is again ascending."""
    return candidates[ops.top_k(None, u.at(candidates, ops), target)]


def without_estimate(u: Compensated, target: int, ops: Any) -> Array:
    """What is selected where an estimate is not finite: whatever is to blame; if only a sum overflowed, exactly."""
    found = ops.threshold(*u, inf)
    return found if found.size else ops.top_k(*u, target)
