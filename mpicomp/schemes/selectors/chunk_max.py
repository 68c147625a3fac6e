"""Chunk-wise maximum: ScaleCom's quasi-sort."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...ops.arguments import Spans, chunk_counts, position_dtype
from ...types import Array
from ..interfaces import Selector, StepContext
from ..options import Option
from ..values import Compensated
from ._by_span import by_densities

LONGEST = 65536


class Layout(NamedTuple):
    """Each span with the length of its chunks; elements and dtype of a selection on the wire."""

    spans: Spans
    wire: tuple[int, np.dtype]


class ChunkMax(Selector):
    """The element of largest magnitude of every ``chunk`` elements (ties: lowest index; NaN counts as largest).

    Density 1/chunk; a schedule of densities changes the chunk. One pass over memory and gradient. On the wire a
    selection is the position inside each chunk: one byte for chunk <= 256, else two. Chunks restart at each span
    (tensor).

    Reference: Chen et al., ScaleCom, NeurIPS 2020, section 3.3.
    """

    name = "chunk-max"
    options = (Option("chunk", int, 112, "elements a chunk, one of which is sent", low=1, high=LONGEST),)
    reference = "Chen et al. 2020 (ScaleCom)"
    finds_nonfinite = per_span = True
    broadcasts = True

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.nominal_density = 1 / chunk

    def select(self, u: Compensated, ctx: StepContext) -> Array:
        """Positions inside the chunks, all spans one after the other."""
        wire = self.wire_like(ctx)
        ctx.ops.chunk_max(*u, self._layout(ctx).spans, wire)
        return wire

    def expand(self, wire: Array, ctx: StepContext) -> Array:
        """Ascending indices into the whole vector."""
        return self._indices(wire, ctx, known=False)

    def expand_own(self, wire: Array, ctx: StepContext) -> Array:
        return self._indices(wire, ctx, known=True)

    def _indices(self, wire: Array, ctx: StepContext, known: bool) -> Array:
        indices = ctx.ops.empty(wire.size, ctx.ops.index_dtype(ctx.n))
        ctx.ops.chunk_indices(wire, self._layout(ctx).spans, ctx.n, indices, known)
        return indices

    def wire_like(self, ctx: StepContext) -> Array:
        """An empty array of the size every rank's selection has on the wire."""
        return ctx.ops.empty(*self._layout(ctx).wire)

    def _layout(self, ctx: StepContext) -> Layout:
        """The step's chunks."""
        return by_densities(self, lambda: self._chunks(ctx), ctx)

    def _chunks(self, ctx: StepContext) -> Layout:
        densities = (ctx.density(1 / self.chunk, span) for span in range(len(ctx.spans)))
        chunks = (min(LONGEST, round(1 / density)) for density in densities)
        spans = [(*span, chunk) for span, chunk in zip(ctx.spans, chunks, strict=True)]
        return Layout(spans, (sum(chunk_counts(spans, ctx.n)), position_dtype(spans)))
