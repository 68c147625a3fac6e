"""The array primitives on the CPU: compiled, vectorised, holding no interpreter lock.

Names, arguments and results are those of :mod:`.reference`, bit for bit (sums of squares apart, whose order of
addition differs). The environment variable ``MPICOMP_ISA`` (``avx512``, ``avx2``, ``baseline``) overrides the
choice of instruction set.
"""

from __future__ import annotations

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
    widen,
)
from .reference import empty, empty_like, index_dtype, to_host, zeros, zeros_like

__all__ = [
    "add",
    "add_widened",
    "chunk_indices",
    "chunk_max",
    "clear",
    "count_nonfinite",
    "empty",
    "empty_like",
    "gather",
    "index_dtype",
    "isa",
    "masked_update",
    "maximum",
    "minimum",
    "multiply",
    "narrow",
    "scale",
    "scatter",
    "scatter_add",
    "squared_norm",
    "threshold",
    "to_host",
    "top_k",
    "widen",
    "zeros",
    "zeros_like",
]
