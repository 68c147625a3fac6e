"""Random-k from a shared seed."""

from __future__ import annotations

from ...types import Array
from ..interfaces import AgreedSelector, StepContext
from ..values import Compensated
from ._by_span import DENSITY, K, Targeted

SHARED = 1 << 31  # numbers from here on belong to no worker or rank: span s of all of them draws from SHARED + s


class RandomK(Targeted, AgreedSelector):
    """One random coordinate out of each of k nearly equal parts of a span; the same on all ranks, new in every step.

    Every rank draws them from (seed, step, span), so no index is sent, nor anything else to agree on. In expectation
    ||u - sent||^2 <= (1 - 1/ceil(n/k)) ||u||^2.

    Reference: Stich et al., Sparsified SGD with memory, NeurIPS 2018 (random-k).
    """

    name = "random-k"
    options = (DENSITY, K)
    reference = "Stich et al. 2018"
    by_magnitude = False

    def sketch(self, u: Compensated, ctx: StepContext) -> Array:
        """Nothing about u is needed."""
        return ctx.ops.empty(0, u.gradient.dtype)

    def pick(self, total: Array, ctx: StepContext) -> Array:
        """Ascending indices into the whole vector."""
        return ctx.ops.random_strata(ctx.n, ctx.spans, self.targets(ctx), ctx.key(SHARED))
