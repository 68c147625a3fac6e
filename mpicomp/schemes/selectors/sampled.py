"""DGC's hierarchical selection: a threshold from a sample."""

from __future__ import annotations

from ...types import Array, Part, parts_of
from ..interfaces import StepContext
from ..options import Option
from ..values import Compensated
from ._by_span import DENSITY, K, Listed, Targeted
from ._estimated import selection

LOW, HIGH = 0.8, 1.3  # bounds on how many pass, in targets
LOWERINGS = 5  # of the threshold, each to LOW of it
ENOUGH = 32  # elements of the sample above the threshold: it is right within about 1/sqrt(32)


class Sampled(Targeted, Listed):
    """About as many as top-k sends, without sorting all: every ``1/sample``-th |u| of a span gives its threshold.

    The smallest of the sample's own top-k is the threshold; the sample's offset goes on by one each step. Where more
    than 1.3 times the target pass, the exact top-k among them is taken; where fewer than 0.8 times, the threshold is
    lowered. So between 0.8 and 1.3 times the target are sent always (where lowering does not help, by an exact top-k of
    all). The sample is larger than asked for where it would hold fewer than 32 of the elements to be sent; small
    targets, below 96, are selected exactly. All spans are treated together, so that a device is asked as often for many
    as for one.

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

    def select(self, u: Compensated, ctx: StepContext) -> Array:
        targets = self.targets(ctx)
        found: dict[int, Part] = {}
        left = {span: 0.0 for span, (start, stop) in enumerate(ctx.spans)  # of which everything is to be sent
                if targets[span] == stop - start and self.stride(targets[span]) > 1}
        for span, (lam, part) in self._estimates(u, targets, ctx).items():
            if part.size >= LOW * targets[span]:
                found[span] = part
            elif lam > 0:  # not NaN
                left[span] = LOW * lam
        for _ in range(LOWERINGS):
            if not left:
                break
            indices, of_each = ctx.ops.threshold(*u, [ctx.spans[span] for span in left], list(left.values()))
            found |= {span: part for span, part in parts_of(indices, left, of_each).items()
                      if part.size >= LOW * targets[span]}
            left = {span: LOW * lam for span, lam in left.items() if span not in found}
        crowded = {span: found[span] for span in sorted(found) if found[span].size > HIGH * targets[span]}
        missed = [span for span in range(len(targets)) if span not in found]
        return selection(u, found, crowded, missed, targets, ctx)

    def _estimates(self, u: Compensated, targets: list[int], ctx: StepContext) -> dict[int, tuple[float, Part]]:
        """By span, the smallest magnitude of its sample's own top-k, and all that reach it.

        Nothing of spans whose sample would be everything, or of which everything is to be sent.
        """
        spans, samples, counts = {}, [], []
        for span, ((start, stop), target) in enumerate(zip(ctx.spans, targets, strict=True)):
            stride = self.stride(target)
            if stride > 1 and target < stop - start:
                first = ctx.number % stride
                size = -(-(stop - start - first) // stride)
                spans[span] = start, stop
                samples.append((start + first, stride, size))
                counts.append(max(1, round(size * target / (stop - start))))
        if not spans:
            return {}
        found = ctx.ops.select_sampled(*u, list(spans.values()), samples, counts)
        parts = parts_of(found.indices, spans, found.counts)
        return {span: (lam, parts[span]) for span, lam in zip(spans, found.lams, strict=True)}

    def stride(self, target: int) -> int:
        """Elements between two of the sample; odd, so as not to keep in step with rows of 2^m elements."""
        longest = min(1 / self.sample, target / ENOUGH)
        return max(1, int(longest) - 1 | 1)
