"""Selecting index lists span by span (tensor by tensor) of one flat vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..values import Array, Compensated


def select_by_span(
    u: Compensated, spans: list[tuple[int, int]], ops: Any, pick: Callable[[Array | None, Array], Array]
) -> tuple[Array, int]:
    """Ascending indices of what ``pick(memory, gradient)`` selects in each span; the number of non-finite gradients."""
    found = []
    for start, stop in spans:
        part = u.span(start, stop)
        indices = pick(part.memory, part.gradient).astype(ops.index_dtype(u.n), copy=False)
        found.append(indices + start if start else indices)
    indices = found[0] if len(found) == 1 else ops.concatenate(found, ops.index_dtype(u.n))
    return indices, u.accumulate(ops)
