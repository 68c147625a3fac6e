"""How well a median is known."""

from __future__ import annotations

import math

import numpy as np

Z95 = 1.96
FEWEST = 6  # samples below which even the whole range covers the median less often than 95 times in 100


def median_interval(samples: np.ndarray) -> tuple[float, float]:
    """The 95 % confidence interval of the median, between two order statistics: no distribution is assumed.

    Of fewer than six samples it is the whole line: minus to plus infinity.

    Reference: Le Boudec, Performance Evaluation of Computer and Communication Systems, 2010, chapter 2.
    """
    n = len(samples)
    if n < FEWEST:
        return -math.inf, math.inf
    half = Z95 * math.sqrt(n) / 2
    low, high = max(0, math.floor(n / 2 - half) - 1), min(n - 1, math.ceil(n / 2 + half))
    ordered = np.sort(samples)
    return float(ordered[low]), float(ordered[high])
