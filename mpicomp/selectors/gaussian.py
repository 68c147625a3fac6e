"""Gaussian-k: a threshold from mean and standard deviation."""

from __future__ import annotations

from math import isfinite, sqrt
from statistics import NormalDist
from typing import Any

from ..values import Array, Compensated
from ._by_span import DENSITY, K
from ._estimated import Estimated, largest_of, without_estimate

FEW, MANY = 2 / 3, 4 / 3  # how many may pass, in targets, before the threshold is corrected
CORRECTIONS = 3


class Gaussian(Estimated):
    """|u| >= |mean| + z * deviation, z the normal quantile that leaves out half the density at either end.

    Where fewer than 2/3 of the target pass the threshold is halved, where more than 4/3 it grows by one half, three
    times at most. If then still too many pass, or a correction leaves too few of too many, the exact top-k among the
    many is taken (published code keeps the first k by position, or the few). If too few pass all along, so be it:
    where tails are unlike the normal one, far fewer may be sent. One pass for the moments, one for each threshold.

    Reference: Shi et al., Understanding top-k sparsification in distributed deep learning, 2019, algorithm 1.
    """

    name = "gaussian"
    options = (DENSITY, K)
    reference = "Shi et al. 2019 (Gaussian-k)"

    def pick(self, u: Compensated, target: int, step: Any) -> Array:
        ops = step.ops
        lam = normal_threshold(u, target, ops)
        if not isfinite(lam):
            return without_estimate(u, target, ops)
        passed = ops.threshold(*u, lam)
        for _ in range(CORRECTIONS):
            if FEW * target <= passed.size <= MANY * target:
                break
            lam *= 0.5 if passed.size < target else 1.5
            before, passed = passed, ops.threshold(*u, lam)
            if passed.size < FEW * target < before.size:
                passed = before
                break
        return passed if passed.size <= MANY * target else largest_of(u, passed, target, ops)


def normal_threshold(u: Compensated, target: int, ops: Any) -> float:
    """What ``target`` of the magnitudes of u exceed if u is normal with mean 0 (or nearly)."""
    _, total, _, squares = ops.moments(*u, 0.0)
    mean: float = total / u.n
    variance: float = squares / u.n - mean * mean
    quantile = -NormalDist().inv_cdf(0.5 * target / u.n)
    return abs(mean) + quantile * sqrt(variance) if variance > 0 else abs(mean)
