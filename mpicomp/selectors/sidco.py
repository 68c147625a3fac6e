"""SIDCo: a threshold from exponential fits of the tail, stage by stage."""

from __future__ import annotations

from math import isfinite, log
from typing import Any

from ..values import Array, Compensated
from ._by_span import DENSITY, K
from ._estimated import Estimated, without_estimate

RATIO = 0.25  # of the elements go on to the next stage
LOW, HIGH = 0.8, 1.2  # how many may pass, in targets
STAGES = 12


class Sidco(Estimated):
    """Fits an exponential to what exceeds the threshold so far, and moves the threshold to where 1/4 remain.

    A stage: threshold += log(1/ratio) * (mean magnitude of what is left - threshold), ratio = 1/4, or what is missing
    to the target where that is more. Later stages read only what the earlier ones left, so all together cost
    little more than two passes. The published system plans the number of stages, and changes it every five steps where
    more than 1.2 or less than 0.8 times the target were sent. Here each stage counts what is left, so their number
    follows within the step: stages go on until at most 1.2 times the target are left; one that leaves less than 0.8
    times is taken back, and the exact top-k of the few candidates before it sent.

    Reference: Abdelmoniem et al., SIDCo, MLSys 2021, section 2.4 and algorithm 1 (the double exponential model).
    """

    name = "sidco"
    options = (DENSITY, K)
    reference = "Abdelmoniem et al. 2021 (SIDCo)"

    def pick(self, u: Compensated, target: int, step: Any) -> Array:
        ops, indices, lam = step.ops, None, 0.0  # indices: where the elements of u stand in the span; None: as they are
        for _ in range(STAGES):
            lam = next_threshold(u, target, lam, ops)
            if not isfinite(lam):
                return _of(indices, without_estimate(u, target, ops))
            passed = ops.threshold(*u, lam)
            if passed.size < LOW * target or passed.size == u.n:
                break
            indices, u = _of(indices, passed), Compensated(None, u.at(passed, ops))
            if u.n <= HIGH * target:
                return indices
        return _of(indices, ops.top_k(*u, target))


def _of(indices: Array | None, found: Array) -> Array:
    return found if indices is None else indices[found]


def next_threshold(u: Compensated, target: int, lam: float, ops: Any) -> float:
    """Where the exponential through the magnitudes of u, all of which exceed ``lam``, leaves the next stage's part."""
    _, _, magnitudes, _ = ops.moments(*u, 0.0)
    ratio = min(1.0, max(RATIO, target / u.n))
    return lam + log(1 / ratio) * (magnitudes / u.n - lam)
