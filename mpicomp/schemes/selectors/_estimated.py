"""What selectors share that estimate thresholds: all spans treated together, each with its part of a list.

A device is then asked as often for many spans as for one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Any

from ...types import Array, Compensated, Part, parts_of
from ...types import joined as joined_by


def joined(parts: Iterable[Part], step: Any) -> Array:
    """All, of ascending spans, in one list."""
    return step.ops.vouch(joined_by(parts, step.ops.concatenate, step.ops.index_dtype(step.n)), step.n)


def selection(found: dict[int, Part], step: Any) -> Array:
    """Ascending indices into the whole vector of what was found in all spans."""
    return joined([found[span] for span in range(len(step.spans))], step)


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
