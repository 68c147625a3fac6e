"""Selecting index lists span by span (tensor by tensor) of one flat vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..values import Array, Compensated


def select_by_span(
    u: Compensated, spans: list[tuple[int, int]], ops: Any, pick: Callable[[Array | None, Array], Array]
) -> Array:
    """Ascending indices into the whole vector of what ``pick(memory, gradient)`` selects in each span."""
    found = []
    for start, stop in spans:
        indices = pick(*u.span(start, stop)).astype(ops.index_dtype(u.n), copy=False)
        found.append(indices + start if start else indices)
    return found[0] if len(found) == 1 else ops.concatenate(found, ops.index_dtype(u.n))
