"""What selectors share that estimate thresholds: all spans treated together, each with its part of a list.

A device is then asked as often for many spans as for one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise
from math import inf, isfinite
from typing import Any, NamedTuple

from ..values import Array, Compensated


class Part(NamedTuple):
    """Of a list of selected indices, those in one span."""

    indices: Array
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def parts_of(indices: Array, spans: Iterable[int], counts: list[int]) -> dict[int, Part]:
    """By span, a list that holds ``counts`` indices of each."""
    bounds = pairwise([0, *accumulate(counts)])
    return {span: Part(indices, *bound) for span, bound in zip(spans, bounds, strict=True)}


def joined(parts: Iterable[Part], step: Any) -> Array:
    """All, of ascending spans, in one list; neighbours in a list stay together."""
    runs: list[Part] = []
    for part in parts:
        if runs and runs[-1].indices is part.indices and runs[-1].end == part.begin:
            runs[-1] = runs[-1]._replace(end=part.end)
        else:
            runs.append(part)
    if len(runs) == 1 and runs[0].size == runs[0].indices.size:
        return runs[0].indices
    lists = [one.indices[one.begin : one.end] for one in runs]
    whole = lists[0] if len(lists) == 1 else step.ops.concatenate(lists, step.ops.index_dtype(step.n))
    return step.ops.vouch(whole, step.n)


def selection(found: dict[int, Part], step: Any) -> Array:
    """Ascending indices into the whole vector of what was found in all spans."""
    return joined([found[span] for span in range(len(step.spans))], step)


def passed(u: Compensated, lams: dict[int, float], step: Any) -> dict[int, Part]:
    """By span, all that reach its threshold; what is not finite, where that is not."""
    if not lams:
        return {}
    indices, counts = step.ops.threshold_spans(*u, [step.spans[span] for span in lams], finite_or_infinity(lams))
    return parts_of(indices, lams, counts)


def finite_or_infinity(lams: dict[int, float]) -> list[float]:
    """The thresholds, infinity for each that is not finite: NaN and infinity reach it, and nothing else."""
    return [lam if isfinite(lam) else inf for lam in lams.values()]


def exactly(u: Compensated, spans: list[int], targets: list[int], step: Any) -> dict[int, Part]:
    """By span, its largest."""
    if not spans:
        return {}
    counts = [targets[span] for span in spans]
    return parts_of(step.ops.top_k_spans(*u, [step.spans[span] for span in spans], counts), spans, counts)


def largest_of(u: Compensated, candidates: dict[int, Part], targets: list[int], step: Any) -> dict[int, Part]:
    """By span, its largest, which are among its candidates."""
    if not candidates:
        return {}
    indices, counts = joined(candidates.values(), step), [targets[span] for span in candidates]
    bounds = list(pairwise([0, *accumulate(part.size for part in candidates.values())]))
    largest = step.ops.top_k_spans(None, u.at(indices, step.ops), bounds, counts)
    return parts_of(step.ops.vouch(indices[largest], step.n), candidates, counts)
