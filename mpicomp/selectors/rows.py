"""ARC-Top-k: the rows whose sketch is largest in the sum over all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..options import Option
from ..values import Array, Compensated
from ._by_span import DENSITY, K, Targeted


class Rows(Targeted):
    """Whole rows of ``row`` neighbouring elements, those of largest norm in the mean, as a sketch of it estimates.

    A row's sketch are its products with ``width`` columns of random signs, the same on all ranks, new in every step.
    Sketches add up over ranks, and the squared norm of a row's sketch is, in expectation, ``width`` times that of the
    row: so the sum tells nearly which rows are largest in the sum of all u, which no rank has seen. So many rows are
    sent that they hold the target, at least one a span; rows restart at each span (tensor), the last may be short.

    Reference: ARC-Top-k (all-reduce compatible top-k), 2025.
    """

    name = "rows"
    options = (
        DENSITY, K,
        Option("row", int, 64, "neighbouring elements sent together", low=1),
        Option("width", int, 4, "numbers in the sketch of a row", low=1, high=64),
    )
    reference = "ARC-Top-k, 2025"

    def __init__(self, density: float, k: int | None, row: int, width: int) -> None:
        super().__init__(density, k)
        self.row, self.width = row, width

    def sketch(self, u: Compensated, step: Any) -> Array:
        """``width`` numbers for each row, all spans one after the other."""
        rows = sum(self._rows(stop - start) for start, stop in step.spans)
        sketch, seed = step.ops.empty(rows * self.width, u.gradient.dtype), _seed(step)
        for _, start, stop, part in self._parts(sketch, step):
            step.ops.project_rows(*u.span(start, stop), self.row, self.width, seed, part)
        return sketch

    def pick(self, total: Array, step: Any) -> Array:
        """Ascending indices into the whole vector, where ``total`` is the sum of all sketches."""
        ops, dtype, found = step.ops, step.ops.index_dtype(step.n), []
        for span, start, stop, part in self._parts(total, step):
            rows = self._rows(stop - start)
            wanted = min(rows, -(-self.count(step, span) // self.row))
            largest = ops.top_k(None, self._norms(part, rows, step), wanted)
            indices = ops.expand_rows(largest, self.row, stop - start).astype(dtype, copy=False)
            found.append(indices + start if start else indices)
        return ops.concatenate(found, dtype)

    def _norms(self, part: Array, rows: int, step: Any) -> Array:
        ops, norms = step.ops, step.ops.empty(rows, part.dtype)
        bounds = step.kept(("rows", rows), lambda: ops.from_host(np.arange(rows + 1, dtype=np.int64) * self.width))
        ops.group_norms(part, bounds, "l2", norms)
        return norms

    def _rows(self, n: int) -> int:
        return -(-n // self.row)

    def _parts(self, sketch: Array, step: Any) -> Iterator[tuple[int, int, int, Array]]:
        """Each span that has elements: its number, where it begins and ends, and its part of a sketch."""
        filled = 0
        for span, (start, stop) in enumerate(step.spans):
            size = self._rows(stop - start) * self.width
            if size:
                yield span, start, stop, sketch[filled : filled + size]
            filled += size


def _seed(step: Any) -> int:
    """Of the random signs: the scheme's seed and the step, the same on all ranks."""
    key = step.key(0)
    return (key.seed * 2**32 + key.step) % 2**63
