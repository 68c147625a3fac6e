"""Exact top-k."""

from __future__ import annotations

from ...types import Array
from ..interfaces import StepContext
from ..values import Compensated
from ._by_span import DENSITY, Counted, K


class TopK(Counted):
    """The k elements of largest magnitude in each span (ties: lowest index), k given or density * elements.

    Reference: Aji and Heafield, 2017 (gradient dropping); Stich et al., 2018.
    """

    name = "top-k"
    options = (DENSITY, K)
    reference = "Aji and Heafield 2017; Stich et al. 2018"

    def select(self, u: Compensated, ctx: StepContext) -> Array:
        return ctx.ops.top_k(*u, ctx.spans, self.counts(ctx))

    def wire_like(self, ctx: StepContext) -> Array:
        return ctx.ops.empty(sum(self.counts(ctx)), ctx.ops.index_dtype(ctx.n))
