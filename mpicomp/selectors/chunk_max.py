"""Chunk-wise maximum: ScaleCom's quasi-sort."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..options import Option
from ..partition import chunk_count
from ..values import Array, Compensated


class ChunkMax:
    """Of every ``chunk`` elements the one of largest magnitude (ties: lowest index; NaN counts as largest).

    Density 1/chunk. One pass over memory and gradient. On the wire a selection is the position inside each
    chunk: one byte for chunk <= 256, else two. Chunks restart at each span (tensor).

    Reference: Chen et al., ScaleCom, NeurIPS 2020, section 3.3.
    """

    name = "chunk-max"
    options = (Option("chunk", int, 112, "elements a chunk, one of which is sent", low=1, high=65536),)
    reference = "Chen et al. 2020 (ScaleCom)"

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.dtype = np.dtype(np.uint8 if chunk <= 256 else np.uint16)

    def select(self, u: Compensated, spans: list[tuple[int, int]], ops: Any) -> Array:
        """Positions inside the chunks, all spans one after the other."""
        positions = self.wire_like(u.n, spans, ops)
        filled = 0
        for start, stop in spans:
            chunks = chunk_count(stop - start, self.chunk)
            part = u.span(start, stop)
            ops.chunk_max(part.memory, part.gradient, self.chunk, positions[filled : filled + chunks])
            filled += chunks
        return positions

    def expand(self, wire: Array, n: int, spans: list[tuple[int, int]], ops: Any) -> Array:
        """Ascending indices into the whole vector."""
        indices = ops.empty(wire.size, ops.index_dtype(n))
        filled = 0
        for start, stop in spans:
            chunks = chunk_count(stop - start, self.chunk)
            part = indices[filled : filled + chunks]
            ops.chunk_indices(wire[filled : filled + chunks], self.chunk, stop - start, part)
            if start:
                part += start
            filled += chunks
        return indices

    def wire_like(self, n: int, spans: list[tuple[int, int]], ops: Any) -> Array:
        """An empty array of the size every rank's selection has on the wire."""
        chunks = sum(chunk_count(stop - start, self.chunk) for start, stop in spans)
        return ops.empty(chunks, self.dtype)
