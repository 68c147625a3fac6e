"""Searches for a threshold that about a target of elements reach, in each of many tensors: one tensor after the other.

Each gives a list and, of every span, the threshold (``lam``) that all of its elements in the list reach, and no others;
if that is not finite, all that are not finite.
"""

from __future__ import annotations

from math import inf, isfinite, log, nan, sqrt
from statistics import NormalDist

import numpy as np

from ..arguments import Array, Bounds, Found, Samples, require_sampled, require_targets
from ..search import CORRECTIONS, DOWN, FEW, HIGH, LOW, MANY, RATIO, STAGES, UP
from .base import compensated
from .many import in_whole, kth_largest, moments_of, reaching, sample


def select_normal(memory: Array | None, grad: Array, spans: Bounds, targets: list[int]) -> Found:
    """Gaussian-k's threshold in each of ``spans``, which ascend: a quantile of the normal distribution, corrected.

    Where fewer than 2/3 of the target reach it, it is halved; where more than 4/3, it grows by one half: three times at
    most. A correction that leaves too few of too many is taken back. 0 where all are wanted.
    """
    require_targets(memory, grad, spans, targets)
    u = compensated(memory, grad)
    found = [_normal(u[start:stop], target) for (start, stop), target in zip(spans, targets, strict=True)]
    return _together(found, spans, u)


def select_exponential(memory: Array | None, grad: Array, spans: Bounds, targets: list[int]) -> Found:
    """SIDCo's threshold in each of ``spans``, which ascend: where exponential fits of the tail, stage by stage, leave
    0.8 to 1.2 times the target.

    A stage that leaves less is taken back, so that more are found, as after the last of 12 stages. Where the first
    stage fails, nothing is found, and the threshold is NaN. 0 where all are wanted.
    """
    require_targets(memory, grad, spans, targets)
    u = compensated(memory, grad)
    found = [_exponential(u[start:stop], target) for (start, stop), target in zip(spans, targets, strict=True)]
    return _together(found, spans, u)


def select_sampled(memory: Array | None, grad: Array, spans: Bounds, samples: Samples, counts: list[int]) -> Found:
    """DGC's threshold in each of ``spans``, which ascend: the ``counts``-th largest magnitude of its sample.

    A sample is that of ``sample``. Where the magnitude is 0 or not finite, nothing is found: NaN.
    """
    places = require_sampled(memory, grad, spans, samples, counts)
    u, values = compensated(memory, grad), np.empty(sum(size for *_, size in samples), grad.dtype)
    sample(memory, grad, samples, values)
    lams = kth_largest(values, places, counts)
    found = [(_reaching(u[start:stop], lam), lam) if 0 < lam < inf else (np.empty(0, np.int64), nan)
             for (start, stop), lam in zip(spans, lams, strict=True)]
    return _together(found, spans, u)


def _normal(u: Array, target: int) -> tuple[Array, float]:
    """Reference: Shi et al., Understanding top-k sparsification in distributed deep learning, 2019, algorithm 1."""
    lam = 0.0
    if target < len(u):
        n, total, _, squares = moments_of(u, 0.0)
        mean, quantile = total / n, -NormalDist().inv_cdf(0.5 * target / n)
        variance = squares / n - mean * mean
        lam = abs(mean) + (quantile * sqrt(variance) if variance > 0 else 0.0)
    found = _reaching(u, lam)
    if not isfinite(lam):
        return found, lam
    for _ in range(CORRECTIONS):
        if FEW * target <= len(found) <= MANY * target:
            break
        corrected = lam * (DOWN if len(found) < target else UP)
        reached = _reaching(u, corrected)
        if len(reached) < FEW * target < len(found):
            break  # the many that reached lam hold the largest
        found, lam = reached, corrected
    return found, lam


def _exponential(u: Array, target: int) -> tuple[Array, float]:
    """Reference: Abdelmoniem et al., SIDCo, MLSys 2021, section 2.4 and algorithm 1 (the double exponential model)."""
    found, lam_found = np.empty(0, np.int64), nan
    left, lam = np.arange(len(u)), 0.0
    for _ in range(STAGES):
        n, _, magnitudes, _ = moments_of(u[left], 0.0)
        if target == n:  # all that are left are wanted
            return left, 0.0
        lam += log(1 / max(RATIO, target / n)) * (magnitudes / n - lam)
        passed = left[_reaching(u[left], lam)]
        if not isfinite(lam):
            return (passed, lam) if len(passed) else (found, lam_found)
        if len(passed) < LOW * target or len(passed) == n:
            break
        found, lam_found, left = passed, lam, passed
        if len(passed) <= HIGH * target:
            break
    return found, lam_found


def _reaching(u: Array, lam: float) -> Array:
    """Elements that reach the threshold; if it is not finite, elements that are not."""
    return reaching(u, lam if isfinite(lam) else inf)


def _together(found: list[tuple[Array, float]], spans: Bounds, u: Array) -> Found:
    indices = [part for part, _ in found]
    return Found(in_whole(indices, spans, len(u)), [len(part) for part in indices], [lam for _, lam in found])
