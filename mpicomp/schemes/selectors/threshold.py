"""Hard threshold."""

from __future__ import annotations

from ...types import Array
from ..interfaces import StepContext
from ..options import DENSITY, LAM, K
from ..values import Compensated
from ._by_span import Listed


class Threshold(Listed):
    """Every element with |u| >= lam, ascending. Element-wise, so layers and whole model give the same.

    Without ``lam`` the rule lam = 1 / (2 sqrt(k)) matches top-k of k elements per step (k = density * n if not
    given); it may send far more or fewer: look at the achieved density. ``||u - sent||_inf < lam`` always.

    Reference: Sahu et al., NeurIPS 2021: it minimises the total error of the whole training under a budget.
    """

    name = "threshold"
    options = (LAM, DENSITY, K)
    reference = "Sahu et al. 2021"
    has_threshold = by_magnitude = True

    def __init__(self, lam: float | None, density: float, k: int | None) -> None:
        self.lam, self.density, self.k = lam, density, k
        if lam is None:
            self.nominal_density = density if k is None else 0.0

    def threshold(self, ctx: StepContext) -> float:
        """The smallest magnitude sent."""
        if self.lam is not None:
            return self.lam
        n = (ctx.all_ranks or ctx).n  # one threshold, wherever the vector is cut
        k: float = self.k or max(1.0, ctx.density(self.density, 0) * n)
        return 0.5 * k**-0.5

    def select(self, u: Compensated, ctx: StepContext) -> Array:
        return ctx.ops.threshold(*u, [(0, ctx.n)], [self.threshold(ctx)])[0]
