"""ARC-Top-k: the rows whose sketch is largest in the sum over all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

import numpy as np

from ...types import Array
from ..interfaces import AgreedSelector, StepContext
from ..options import Option
from ..values import Compensated
from ._by_span import DENSITY, K, Targeted


class Rows(Targeted, AgreedSelector):
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

    def warning_texts(self) -> Iterator[str]:
        if self.row <= self.width:
            yield (f"the sketches of selector {self.name} are as long as the gradient where row={self.row} is no "
                   f"more than width={self.width}, so that more is sent than without compression: take row several "
                   "times width, such as row=64,width=4")  # fmt: skip

    def sketch(self, u: Compensated, ctx: StepContext) -> Array:
        """``width`` numbers for each row, all spans one after the other."""
        sketch = ctx.ops.empty(sum(self._rows(ctx)) * self.width, u.gradient.dtype)
        ctx.ops.project_rows(*u, ctx.spans, self.row, self.width, _seed(ctx), sketch)
        return sketch

    def pick(self, total: Array, ctx: StepContext) -> Array:
        """Ascending indices into the whole vector, where ``total`` is the sum of all sketches."""
        rows = self._rows(ctx)
        wanted = [min(own, -(-target // self.row)) for own, target in zip(rows, self.targets(ctx), strict=True)]
        bounds = list(pairwise([0, *accumulate(rows)]))
        largest = ctx.ops.top_k(None, self._norms(total, sum(rows), ctx), bounds, wanted)
        return ctx.ops.expand_rows(largest, self.row, ctx.spans, ctx.n)

    def _norms(self, total: Array, rows: int, ctx: StepContext) -> Array:
        ops, norms = ctx.ops, ctx.ops.empty(rows, total.dtype)
        bounds = ctx.of_layout(("rows", rows), lambda: ops.from_host(np.arange(rows + 1, dtype=np.int64) * self.width))
        ops.group_norms(total, bounds, "l2", norms)
        return norms

    def _rows(self, ctx: StepContext) -> list[int]:
        """Number of rows per span."""
        return [-(-(stop - start) // self.row) for start, stop in ctx.spans]


def _seed(ctx: StepContext) -> int:
    """Seed of the random signs, from the scheme's seed and the step: the same on all ranks."""
    key = ctx.key(0)
    return (key.seed * 2**32 + key.step) % 2**63
