"""The array primitives on the CPU: compiled, vectorised, holding no interpreter lock.

Names, arguments and results are those of :mod:`.reference`, bit for bit (sums of squares apart, whose order of
addition differs). The environment variable ``MPICOMP_ISA`` (``avx512``, ``avx2``, ``baseline``) overrides the
choice of instruction set.
"""

from __future__ import annotations

import numpy as np

from ._cpu import (
    add,
    add_widened,
    chunk_indices,
    chunk_max,
    clear,
    count_nonfinite,
    gather,
    isa,
    masked_update,
    maximum,
    minimum,
    multiply,
    narrow,
    scale,
    scatter,
    scatter_add,
    squared_norm,
    threshold,
    top_k,
    union_of,
    widen,
)
from .reference import (
    PIECE,
    arange,
    concatenate,
    empty,
    from_host,
    index_dtype,
    positions_of,
    to_host,
    zeros,
)

__all__ = [
    "PIECE",
    "add",
    "add_widened",
    "arange",
    "chunk_indices",
    "chunk_max",
    "clear",
    "concatenate",
    "count_nonfinite",
    "empty",
    "from_host",
    "gather",
    "index_dtype",
    "isa",
    "masked_update",
    "maximum",
    "minimum",
    "multiply",
    "narrow",
    "positions_of",
    "scale",
    "scatter",
    "scatter_add",
    "squared_norm",
    "threshold",
    "to_host",
    "top_k",
    "union",
    "widen",
    "zeros",
]


def union(lists: list[np.ndarray], n: int) -> np.ndarray:
    """Ascending indices, each once, of all that are in any of ``lists`` (indices into ``n`` elements)."""
    out = np.empty(sum(map(len, lists)), index_dtype(n))
    return out[: union_of(lists, n, out)]
