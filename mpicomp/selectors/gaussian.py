"""Gaussian-k: a threshold from mean and standard deviation."""

from __future__ import annotations

from math import isfinite, sqrt
from statistics import NormalDist
from typing import Any

from ..values import Array, Compensated
from ._by_span import DENSITY, K, Listed, Targeted
from ._estimated import exactly, largest_of, passed, selection

FEW, MANY = 2 / 3, 4 / 3  # how many may pass, in targets, before the threshold is corrected
CORRECTIONS = 3


class Gaussian(Targeted, Listed):
    """|u| >= |mean| + z * deviation, z the normal quantile that leaves out half the density at either end.

    Where fewer than 2/3 of the target pass the threshold is halved, where more than 4/3 it grows by one half, three
    times at most. If then still too many pass, or a correction leaves too few of too many, the exact top-k among the
    many is taken (published code keeps the first k by position, or the few). If too few pass all along, so be it:
    where tails are unlike the normal one, far fewer may be sent. One pass for the moments, one for each threshold; all
    spans are treated together. NaN and infinity are found first; where only a sum overflowed, the exact top-k is taken.

    Reference: Shi et al., Understanding top-k sparsification in distributed deep learning, 2019, algorithm 1.
    """

    name = "gaussian"
    options = (DENSITY, K)
    reference = "Shi et al. 2019 (Gaussian-k)"

    def select(self, u: Compensated, step: Any) -> Array:
        targets = self.targets(step)
        lams = thresholds(u, targets, step)
        found, fitted = passed(u, lams, step), {span: lam for span, lam in lams.items() if isfinite(lam)}
        left = fitted
        for _ in range(CORRECTIONS):
            left = {span: lam * (0.5 if found[span].size < targets[span] else 1.5) for span, lam in left.items()
                    if not FEW * targets[span] <= found[span].size <= MANY * targets[span]}
            for span, part in passed(u, left, step).items():
                if part.size < FEW * targets[span] < found[span].size:
                    del left[span]  # the many that passed before hold the largest
                else:
                    found[span] = part
        crowded = {span: found[span] for span in fitted if found[span].size > MANY * targets[span]}
        overflowed = [span for span in lams if span not in fitted and not found[span].size]
        found |= largest_of(u, crowded, targets, step)
        found |= exactly(u, overflowed, targets, step)
        return selection(found, step)


def thresholds(u: Compensated, targets: list[int], step: Any) -> dict[int, float]:
    """By span, what its target of magnitudes exceed if u is normal with mean 0 (or nearly); 0 where all are wanted."""
    some = {span: (start, stop) for span, (start, stop) in enumerate(step.spans) if targets[span] < stop - start}
    moments = step.ops.moments_spans(*u, list(some.values()), 0.0) if some else []
    lams = {span: normal_threshold(n, total, squares, targets[span])
            for span, (n, total, _, squares) in zip(some, moments, strict=True)}
    return {span: lams.get(span, 0.0) for span in range(len(targets))}


def normal_threshold(n: int, total: float, squares: float, target: int) -> float:
    """Of ``n`` elements with this sum and this sum of squares."""
    mean = total / n
    variance = squares / n - mean * mean
    quantile = -NormalDist().inv_cdf(0.5 * target / n)
    return abs(mean) + quantile * sqrt(variance) if variance > 0 else abs(mean)
