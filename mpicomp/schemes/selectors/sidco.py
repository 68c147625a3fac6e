"""SIDCo: a threshold from exponential fits of the tail, stage by stage."""

from __future__ import annotations

from math import isfinite

from ...ops.search import HIGH
from ...types import Array, parts_of
from ..interfaces import StepContext
from ..values import Compensated
from ._by_span import DENSITY, K, Listed, Targeted
from ._estimated import selection


class Sidco(Targeted, Listed):
    """Fits an exponential to what exceeds the threshold so far, and moves the threshold to where 1/4 remain.

    A stage: threshold += log(1/ratio) * (mean magnitude of what is left - threshold), ratio = 1/4, or the one that
    reaches the target if that is more. Later stages read only what the earlier ones left, so all stages cost
    little more than two passes. The published system plans the number of stages, and changes it every five steps where
    more than 1.2 or less than 0.8 times the target were sent. Here each stage counts what is left, so their number
    follows within the step: stages go on until at most 1.2 times the target are left; one that leaves less than 0.8
    times is taken back, and the exact top-k of the few candidates before it sent. A stage goes through all spans
    together. NaN and infinity are found first; where only a sum overflowed, the exact top-k is taken.

    Reference: Abdelmoniem et al., SIDCo, MLSys 2021, section 2.4 and algorithm 1 (the double exponential model).
    """

    name = "sidco"
    options = (DENSITY, K)
    reference = "Abdelmoniem et al. 2021 (SIDCo)"

    def select(self, u: Compensated, ctx: StepContext) -> Array:
        targets = self.targets(ctx)
        indices, counts, lams = ctx.ops.select_exponential(*u, ctx.spans, targets)
        found = parts_of(indices, range(len(targets)), counts)
        taken_back = {span: part for span, part in found.items()
                      if isfinite(lams[span]) and part.size > HIGH * targets[span]}
        nothing = [span for span, part in found.items() if part.size == 0 < targets[span]]
        return selection(u, found, taken_back, nothing, targets, ctx)
