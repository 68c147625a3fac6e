"""Base of selectors that estimate thresholds: all spans treated in one call, each with its part of a list.

A device is then asked as often for many spans as for one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise

from ...types import Array, Part, joined, parts_of
from ..interfaces import StepContext
from ..values import Compensated


def selection(u: Compensated, found: dict[int, Part], crowded: dict[int, Part], missed: list[int], targets: list[int],
              ctx: StepContext) -> Array:
    """Ascending indices into the whole vector of what was found in all spans, by number.

    Of ``crowded`` spans, the largest of what was found; of ``missed`` ones, the largest of all.
    """
    found = {**found, **_largest_of(u, crowded, targets, ctx), **_exactly(u, missed, targets, ctx)}
    return _joined([found[span] for span in range(len(ctx.spans))], ctx)


def _joined(parts: Iterable[Part], ctx: StepContext) -> Array:
    """All, of ascending spans, in one list."""
    return ctx.ops.vouch(joined(parts, ctx.ops.concatenate, ctx.ops.index_dtype(ctx.n)), ctx.n)


def _exactly(u: Compensated, spans: list[int], targets: list[int], ctx: StepContext) -> dict[int, Part]:
    """By span, its largest."""
    if not spans:
        return {}
    counts = [targets[span] for span in spans]
    return parts_of(ctx.ops.top_k(*u, [ctx.spans[span] for span in spans], counts), spans, counts)


def _largest_of(u: Compensated, candidates: dict[int, Part], targets: list[int], ctx: StepContext) -> dict[int, Part]:
    """By span, its largest, which are among its candidates."""
    if not candidates:
        return {}
    indices, counts = _joined(candidates.values(), ctx), [targets[span] for span in candidates]
    bounds = list(pairwise([0, *accumulate(part.size for part in candidates.values())]))
    largest = ctx.ops.top_k(None, u.at(indices, ctx.ops), bounds, counts)
    return parts_of(ctx.ops.vouch(indices[largest], ctx.n), candidates, counts)
