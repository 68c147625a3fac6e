"""SIDCo: a threshold from exponential fits of the tail, stage by stage."""

from __future__ import annotations

from math import isfinite, log
from typing import Any

from ..values import Array, Compensated
from ._by_span import DENSITY, K, Listed, Targeted
from ._estimated import Part, exactly, finite_or_infinity, largest_of, parts_of, selection

RATIO = 0.25  # of the elements go on to the next stage
LOW, HIGH = 0.8, 1.2  # how many may pass, in targets
STAGES = 12


class Sidco(Targeted, Listed):
    """Fits an exponential to what exceeds the threshold so far, and moves the threshold to where 1/4 remain.

    A stage: threshold += log(1/ratio) * (mean magnitude of what is left - threshold), ratio = 1/4, or what is missing
    to the target where that is more. Later stages read only what the earlier ones left, so all together cost
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

    def select(self, u: Compensated, step: Any) -> Array:
        targets = self.targets(step)
        found: dict[int, Part] = {}
        candidates: dict[int, Part] = {}  # what the last stage left of a span
        values, indices = u, None  # all that the last stage left, and where that stands in u (None: as it is)
        bounds, lams = dict(enumerate(step.spans)), dict.fromkeys(range(len(targets)), 0.0)  # bounds in `values`
        for _ in range(STAGES):
            if not bounds:
                break
            lams = next_thresholds(values, bounds, lams, targets, step.ops)
            passed, counts = step.ops.threshold_spans(*values, list(bounds.values()), finite_or_infinity(lams))
            indices = passed if indices is None else step.ops.vouch(indices[passed], step.n)
            further = {}
            for span, part in parts_of(indices, bounds, counts).items():
                n = bounds[span][1] - bounds[span][0]
                if enough(part.size, n, targets[span], lams[span]):
                    found[span] = part
                elif too_many(part.size, n, targets[span], lams[span]):
                    candidates[span], further[span] = part, (part.begin, part.end)
            bounds = further
            if bounds:
                values = Compensated(None, values.at(passed, step.ops))
        taken_back = {span: candidates[span] for span in sorted(candidates) if span not in found}
        found |= largest_of(u, taken_back, targets, step)
        found |= exactly(u, [span for span in range(len(targets)) if span not in found], targets, step)
        return selection(found, step)


def next_thresholds(u: Compensated, bounds: dict[int, tuple[int, int]], lams: dict[int, float], targets: list[int],
                    ops: Any) -> dict[int, float]:
    """By span, where the exponential through its magnitudes, all of which exceed its lam, leaves the next stage's part.

    0 where all are wanted.
    """
    moments = ops.moments_spans(*u, list(bounds.values()), 0.0)
    return {span: next_threshold(n, magnitudes, lams[span], targets[span]) if targets[span] < n else 0.0
            for span, (n, _, magnitudes, _) in zip(bounds, moments, strict=True)}


def next_threshold(n: int, magnitudes: float, lam: float, target: int) -> float:
    """Of ``n`` elements with this sum of magnitudes."""
    ratio = min(1.0, max(RATIO, target / n))
    return lam + log(1 / ratio) * (magnitudes / n - lam)


def enough(passed: int, n: int, target: int, lam: float) -> bool:
    """Whether those that passed, of ``n``, are sent; of a lam that is not finite, whatever is to blame."""
    if not isfinite(lam):
        return passed > 0
    return target == n or (LOW * target <= passed <= HIGH * target and passed < n)


def too_many(passed: int, n: int, target: int, lam: float) -> bool:
    """Whether another stage is to go through those that passed: they are fewer than before."""
    return isfinite(lam) and HIGH * target < passed < n
