"""Chunk-wise maximum: ScaleCom's quasi-sort."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..options import Option
from ..partition import chunk_count
from ..values import Array, Compensated

LONGEST = 65536


class ChunkMax:
    """Of every ``chunk`` elements the one of largest magnitude (ties: lowest index; NaN counts as largest).

    Density 1/chunk; a schedule of densities changes the chunk. One pass over memory and gradient. On the wire a
    selection is the position inside each chunk: one byte for chunk <= 256, else two. Chunks restart at each span
    (tensor).

    Reference: Chen et al., ScaleCom, NeurIPS 2020, section 3.3.
    """

    name = "chunk-max"
    options = (Option("chunk", int, 112, "elements a chunk, one of which is sent", low=1, high=LONGEST),)
    reference = "Chen et al. 2020 (ScaleCom)"
    finds_nonfinite = True

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk

    def select(self, u: Compensated, step: Any) -> Array:
        """Positions inside the chunks, all spans one after the other."""
        wire = self.wire_like(step)
        for start, stop, chunk, positions in self._parts(wire, step):
            own = positions if _fits(chunk, wire) else step.ops.empty(positions.size, np.uint8)
            step.ops.chunk_max(*u.span(start, stop), chunk, own)
            if own is not positions:
                positions[:] = own
        return wire

    def expand(self, wire: Array, step: Any) -> Array:
        """Ascending indices into the whole vector."""
        indices = step.ops.empty(wire.size, step.ops.index_dtype(step.n))
        filled = 0
        for start, stop, chunk, positions in self._parts(wire, step):
            own = positions if _fits(chunk, wire) else positions.astype(np.uint8)
            part = indices[filled : filled + own.size]
            step.ops.chunk_indices(own, chunk, stop - start, part)
            if start:
                part += start
            filled += own.size
        return indices

    def wire_like(self, step: Any) -> Array:
        """An empty array of the size every rank's selection has on the wire."""
        chunks = self._chunks(step)
        dtype = np.uint8 if max(chunks) <= 256 else np.uint16
        count = sum(chunk_count(stop - start, chunk) for (start, stop), chunk in zip(step.spans, chunks, strict=True))
        return step.ops.empty(count, dtype)

    def _chunks(self, step: Any) -> list[int]:
        """The length of a chunk in each span."""
        densities = (step.density(1 / self.chunk, span) for span in range(len(step.spans)))
        return [min(LONGEST, round(1 / density)) for density in densities]

    def _parts(self, wire: Array, step: Any) -> Iterator[tuple[int, int, int, Array]]:
        """Each span with its chunk and its part of ``wire``."""
        filled = 0
        for (start, stop), chunk in zip(step.spans, self._chunks(step), strict=True):
            chunks = chunk_count(stop - start, chunk)
            yield start, stop, chunk, wire[filled : filled + chunks]
            filled += chunks


def _fits(chunk: int, wire: Array) -> bool:
    """Whether positions in a chunk are held in ``wire``'s type; where spans' chunks differ, the widest is taken."""
    return wire.itemsize == (1 if chunk <= 256 else 2)
