"""Gaussian-k: a threshold from mean and standard deviation."""

from __future__ import annotations

from math import isfinite

from ...ops.search import MANY
from ...types import Array, parts_of
from ..interfaces import StepContext
from ..values import Compensated
from ._by_span import DENSITY, K, Listed, Targeted
from ._estimated import selection


class Gaussian(Targeted, Listed):
    """|u| >= |mean| + z * deviation, z the normal quantile that leaves out half the density at either end.

    Where fewer than 2/3 of the target pass the threshold is halved, where more than 4/3 it grows by one half, three
    times at most. If then still too many pass, or a correction leaves too few of too many, the exact top-k among the
    many is taken (published code keeps the first k by position, or the few). If too few pass all along, so be it:
    where tails are unlike the normal one, far fewer may be sent. One pass for the moments, one for each threshold (a
    device: one that counts for all of them, and one for the list); all spans are treated together. NaN and infinity are
    found first; where only a sum overflowed, the exact top-k is taken.

    Reference: Shi et al., Understanding top-k sparsification in distributed deep learning, 2019, algorithm 1.
    """

    name = "gaussian"
    options = (DENSITY, K)
    reference = "Shi et al. 2019 (Gaussian-k)"

    def select(self, u: Compensated, ctx: StepContext) -> Array:
        targets = self.targets(ctx)
        indices, counts, lams = ctx.ops.select_normal(*u, ctx.spans, targets)
        found = parts_of(indices, range(len(targets)), counts)
        crowded = {span: part for span, part in found.items()
                   if isfinite(lams[span]) and part.size > MANY * targets[span]}
        overflowed = [span for span, part in found.items() if not (isfinite(lams[span]) or part.size)]
        return selection(u, found, crowded, overflowed, targets, ctx)
