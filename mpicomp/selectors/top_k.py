"""Exact top-k."""

from __future__ import annotations

from typing import Any

from ..options import Option
from ..values import Array, Compensated
from ._by_span import select_by_span


class TopK:
    """The k elements of largest magnitude in each span (ties: lowest index), k given or density * elements.

    Reference: Aji and Heafield, 2017 (gradient dropping); Stich et al., 2018.
    """

    name = "top-k"
    options = (
        Option("density", float, 0.01, "fraction of the elements sent", low=0, high=1, open_low=True),
        Option("k", int, None, "elements sent, instead of a density", low=1),
    )
    reference = "Aji and Heafield 2017; Stich et al. 2018"

    def __init__(self, density: float, k: int | None) -> None:
        self.density, self.k = density, k

    def count(self, n: int) -> int:
        """How many of ``n`` elements are sent: at least one of any that there are."""
        wanted = self.k if self.k is not None else round(self.density * n)
        return min(n, max(1, wanted))

    def select(self, u: Compensated, spans: list[tuple[int, int]], ops: Any) -> Array:
        return select_by_span(u, spans, ops, lambda m, g: ops.top_k(m, g, self.count(g.size)))

    def expand(self, wire: Array, n: int, spans: list[tuple[int, int]], ops: Any) -> Array:
        return wire

    def wire_like(self, n: int, spans: list[tuple[int, int]], ops: Any) -> Array:
        return ops.empty(sum(self.count(stop - start) for start, stop in spans), ops.index_dtype(n))
