"""Exact top-k."""

from __future__ import annotations

from typing import Any

from ...types import Array, Compensated
from ._by_span import DENSITY, Counted, K


class TopK(Counted):
    """The k elements of largest magnitude in each span (ties: lowest index), k given or density * elements.

    Reference: Aji and Heafield, 2017 (gradient dropping); Stich et al., 2018.
    """

    name = "top-k"
    options = (DENSITY, K)
    reference = "Aji and Heafield 2017; Stich et al. 2018"

    def select(self, u: Compensated, step: Any) -> Array:
        return step.ops.top_k_spans(*u, step.spans, self.counts(step))

    def wire_like(self, step: Any) -> Array:
        return step.ops.empty(sum(self.counts(step)), step.ops.index_dtype(step.n))
