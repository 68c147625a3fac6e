"""Confidence interval of a median."""

from __future__ import annotations

import math

import numpy as np

Z95 = 1.96
FEWEST = 6  # of fewer samples even the whole range covers the median in less than 95 of 100 cases


def median_interval(samples: np.ndarray) -> tuple[float, float]:
    """The 95 % confidence interval of the median, between two order statistics: no distribution is assumed.

    Infinite for fewer than six samples.

    Reference: Le Boudec, Performance Evaluation of Computer and Communication Systems, 2010, chapter 2.
    """
    n = len(samples)
    if n < FEWEST:
        return -math.inf, math.inf
    half = Z95 * math.sqrt(n) / 2
    low, high = max(0, math.floor(n / 2 - half) - 1), min(n - 1, math.ceil(n / 2 + half))
    ordered = np.sort(samples)
    return float(ordered[low]), float(ordered[high])
