"""Searches for a threshold that about a target of elements reach, in each of many tensors, by a module's operations.

Each gives a list and, of every span, the threshold (``lam``) that all of its elements in the list reach, and no others;
if that is not finite, all that are not finite. The numbers of the rules serve all modules; devices have the
searches in ``gpu/search.cu``.
"""

from __future__ import annotations

from math import inf, isfinite, log, nan, sqrt
from statistics import NormalDist

from .arguments import Array, Bounds, Found, Samples, require_sampled, require_targets
from .host import index_dtype
from .index_lists import Part, joined, parts_of
from .protocol import Ops

FEW, MANY = 2 / 3, 4 / 3  # how many may reach a normal threshold, in targets, before it is corrected
CORRECTIONS, DOWN, UP = 3, 0.5, 1.5
RATIO = 0.25  # of the elements go on to the next stage of exponential fits
LOW, HIGH = 0.8, 1.2  # how many may reach an exponential threshold, in targets
STAGES = 12


# ---- the formulas

def normal_quantile(n: int, target: int) -> float:
    """Number of deviations that leave out half of the target, of ``n`` normal deviates, at either end."""
    return -NormalDist().inv_cdf(0.5 * target / n)


def normal_threshold(n: int, total: float, squares: float, quantile: float) -> float:
    """``|mean| + quantile * deviation`` of ``n`` elements with this sum and this sum of squares.

    Reference: Shi et al., Understanding top-k sparsification in distributed deep learning, 2019, algorithm 1.
    """
    mean = total / n
    variance = squares / n - mean * mean
    return abs(mean) + quantile * sqrt(variance) if variance > 0 else abs(mean)


def exponential_threshold(n: int, magnitudes: float, lam: float, target: int) -> float:
    """Magnitude at which the exponential through ``n`` magnitudes, at least ``lam``, leaves 1/4, or the target.

    Reference: Abdelmoniem et al., SIDCo, MLSys 2021, section 2.4 and algorithm 1 (the double exponential model).
    """
    ratio = min(1.0, max(RATIO, target / n))
    return lam + log(1 / ratio) * (magnitudes / n - lam)


# ---- the searches

def normal_in(ops: Ops, memory: Array | None, grad: Array, spans: Bounds, targets: list[int]) -> Found:
    require_targets(memory, grad, spans, targets)
    some = [s for s, (start, stop) in enumerate(spans) if targets[s] < stop - start]
    moments = ops.moments(memory, grad, [spans[s] for s in some], 0.0) if some else []
    lams = dict.fromkeys(range(len(spans)), 0.0)
    for s, (n, total, _, squares) in zip(some, moments, strict=True):
        lams[s] = normal_threshold(n, total, squares, normal_quantile(n, targets[s]))
    found = _reaching(ops, memory, grad, spans, lams)
    left = {s: lam for s, lam in lams.items() if isfinite(lam)}
    for _ in range(CORRECTIONS):
        left = {s: lam * (DOWN if found[s].size < targets[s] else UP) for s, lam in left.items()
                if not FEW * targets[s] <= found[s].size <= MANY * targets[s]}
        for s, part in _reaching(ops, memory, grad, spans, left).items():
            if part.size < FEW * targets[s] < found[s].size:
                del left[s]  # the many that passed before hold the largest
            else:
                found[s], lams[s] = part, left[s]
    return _all_of(ops, found, lams, grad)


def exponential_in(ops: Ops, memory: Array | None, grad: Array, spans: Bounds, targets: list[int]) -> Found:
    require_targets(memory, grad, spans, targets)
    found: dict[int, Part] = {}
    lams = dict.fromkeys(range(len(spans)), nan)  # of what was found
    tried = dict.fromkeys(range(len(spans)), 0.0)
    m, values, indices = memory, grad, None  # all that the last stage left, and where that stands (None: as it is)
    bounds = dict(enumerate(spans))  # in `values`
    for _ in range(STAGES):
        if not bounds:
            break
        moments = ops.moments(m, values, list(bounds.values()), 0.0)
        tried = {s: exponential_threshold(n, magnitudes, tried[s], targets[s]) if targets[s] < n else 0.0
                 for s, (n, _, magnitudes, _) in zip(bounds, moments, strict=True)}
        passed, counts = ops.threshold(m, values, list(bounds.values()), finite_or_infinity(tried))
        indices = passed if indices is None else indices[passed]
        further = {}
        for s, part in parts_of(indices, bounds, counts).items():
            n = bounds[s][1] - bounds[s][0]
            more = too_many(part.size, n, targets[s], tried[s])
            if more or enough(part.size, n, targets[s], tried[s]):
                found[s], lams[s] = part, tried[s]
            if more:
                further[s] = part.begin, part.end
        bounds = further
        if bounds:
            reached = ops.empty(passed.size, grad.dtype)
            ops.gather(m, values, passed, reached)
            m, values = None, reached
    return _all_of(ops, found, lams, grad)


def enough(passed: int, n: int, target: int, lam: float) -> bool:
    """Return True if those that passed, of ``n``, are a selection; if lam is not finite, any number is."""
    if not isfinite(lam):
        return passed > 0
    return target == n or (LOW * target <= passed <= HIGH * target and passed < n)


def too_many(passed: int, n: int, target: int, lam: float) -> bool:
    """Return True if another stage goes through those that passed: they are fewer than before."""
    return isfinite(lam) and HIGH * target < passed < n


def sampled_in(ops: Ops, memory: Array | None, grad: Array, spans: Bounds, samples: Samples, counts: list[int]
               ) -> Found:
    places = require_sampled(memory, grad, spans, samples, counts)
    values = ops.empty(places[-1][1] if places else 0, grad.dtype)
    ops.sample(memory, grad, samples, values)
    lams = {s: lam if 0 < lam < inf else nan for s, lam in enumerate(ops.kth_largest(values, places, counts))}
    found = _reaching(ops, memory, grad, spans, {s: lam for s, lam in lams.items() if lam > 0})
    return _all_of(ops, found, lams, grad)


def _reaching(ops: Ops, memory: Array | None, grad: Array, spans: Bounds, lams: dict[int, float]) -> dict[int, Part]:
    """Elements of each span that reach its threshold; if it is not finite, elements that are not."""
    if not lams:
        return {}
    indices, counts = ops.threshold(memory, grad, [spans[s] for s in lams], finite_or_infinity(lams))
    return parts_of(indices, lams, counts)


def finite_or_infinity(lams: dict[int, float]) -> list[float]:
    """The thresholds, infinity for each that is not finite: NaN and infinity reach it, and nothing else."""
    return [lam if isfinite(lam) else inf for lam in lams.values()]


def _all_of(ops: Ops, found: dict[int, Part], lams: dict[int, float], grad: Array) -> Found:
    indices = joined([found[s] for s in sorted(found)], ops.concatenate, index_dtype(grad.size))
    return Found(indices, [found[s].size if s in found else 0 for s in lams], list(lams.values()))
