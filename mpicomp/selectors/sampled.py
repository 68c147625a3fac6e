"""DGC's hierarchical selection: a threshold from a sample."""

from __future__ import annotations

from math import isfinite
from typing import Any

from ..options import Option
from ..values import Array, Compensated
from ._by_span import DENSITY, K
from ._estimated import Estimated, largest_of, without_estimate

LOW, HIGH = 0.8, 1.3  # bounds on how many pass, in targets
LOWERINGS = 5  # of the threshold, each to LOW of it
ENOUGH = 32  # elements of the sample above the threshold: it is right within about 1/sqrt(32)


class Sampled(Estimated):
    """About as many as top-k sends, without sorting all: every ``1/sample``-th |u| gives the threshold.

    The smallest of the sample's own top-k is the threshold; the sample's offset goes on by one each step. Where more
    than 1.3 times the target pass, the exact top-k among them is taken; where fewer than 0.8 times, the threshold is
    lowered. So between 0.8 and 1.3 times the target are sent always (where lowering does not help, by an exact top-k of
    all). The sample is larger than asked for where it would hold fewer than 32 of the elements to be sent; small
    targets, below 96, are selected exactly.

    Reference: Lin et al., Deep Gradient Compression, ICLR 2018, section 3.1 and appendix.
    """

    name = "sampled"
    options = (
        DENSITY, K,
        Option("sample", float, 0.01, "fraction of the elements a threshold is estimated from",
               low=0, high=1, open_low=True),
    )
    reference = "Lin et al. 2018 (DGC)"

    def __init__(self, density: float, k: int | None, sample: float) -> None:
        super().__init__(density, k)
        self.sample = sample

    def pick(self, u: Compensated, target: int, step: Any) -> Array:
        ops = step.ops
        lam = self._threshold(u, target, step)
        if not isfinite(lam):
            return without_estimate(u, target, ops)
        for _ in range(LOWERINGS + 1 if lam else 0):  # 0 would let everything pass
            passed = ops.threshold(*u, lam)
            if passed.size > HIGH * target:
                return largest_of(u, passed, target, ops)
            if passed.size >= LOW * target:
                return passed
            lam *= LOW
        return ops.top_k(*u, target)

    def _threshold(self, u: Compensated, target: int, step: Any) -> float:
        """The smallest magnitude of the sample's own top-k; 0 where the sample would be everything."""
        ops, stride = step.ops, self.stride(target)
        if stride == 1:
            return 0.0
        first = step.number % stride
        values = ops.empty(-(-(u.n - first) // stride), u.gradient.dtype)
        ops.sample(*u, first, stride, values)
        largest = ops.top_k(None, values, max(1, round(values.size * target / u.n)))
        return float(abs(Compensated(None, values).at(largest, ops)).min())

    def stride(self, target: int) -> int:
        """Elements between two of the sample; odd, so as not to keep in step with rows of 2^m elements."""
        longest = min(1 / self.sample, target / ENOUGH)
        return max(1, int(longest) - 1 | 1)
