"""The array primitives on the CPU: compiled, vectorised, holding no interpreter lock.

Names, arguments and results are those of :mod:`.oracle`, bit for bit (sums of squares apart, whose order of
addition differs). The environment variable ``MPICOMP_ISA`` (``avx512``, ``avx2``, ``baseline``) overrides the
choice of instruction set.
"""

from __future__ import annotations

import numpy as np

from .. import extension  # noqa: F401  (before what it looks for)
from .._cpu import (
    add,
    add_widened,
    axpby,
    bin_select,
    chunk_indices,
    chunk_max,
    clear,
    common,
    count_beyond,
    count_nonfinite,
    count_sketch,
    dense_update,
    dequantise,
    expand_rows,
    gather,
    group_means,
    isa,
    largest_gap,
    low_rank_product,
    masked_update,
    maximum,
    minimum,
    moments,
    multiply,
    narrow,
    orthogonalise,
    pack_bitmap,
    pack_gaps,
    pack_levels,
    pack_natural,
    pack_signs,
    project,
    project_back,
    project_rows,
    random_strata,
    random_words,
    sample,
    scale,
    scatter,
    scatter_add,
    sketch_estimate,
    squared_norm,
    threshold,
    top_k,
    uniform,
    unpack_levels,
    unpack_natural,
    widen,
)
from ..arguments import Bounds, Key, Matrices, Moments, Samples, Spans, require_rows_of_spans
from ..host import (
    PIECE,
    arange,
    ascends,
    concatenate,
    empty,
    filled_length,
    from_host,
    group_bounds,
    index_dtype,
    pack,
    positions_of,
    sorted_magnitudes,
    to_host,
    unpack,
    vouch,
    zeros,
)
from ..spans import (
    chunk_indices_in,
    chunk_max_in,
    expand_rows_in,
    low_rank_product_each,
    moments_in,
    orthogonalise_each,
    project_back_each,
    project_each,
    project_rows_in,
    random_strata_in,
    sample_in,
    threshold_in,
    top_k_in,
)
from .composed import (
    add_lists,
    bin_select_spans,
    exponential_spans,
    gather_counted,
    kth_largest_spans,
    normal_spans,
    restrict,
    sampled_spans,
    union,
    unpack_bitmap,
    unpack_gaps,
    unpack_sparse,
)
from .quantise import decode_natural, encode_natural, group_norms, limit_norms, quantise, unpack_signs

__all__ = [
    "PIECE",
    "Key",
    "add",
    "add_lists",
    "add_widened",
    "arange",
    "ascends",
    "axpby",
    "bin_select",
    "bin_select_spans",
    "chunk_indices",
    "chunk_indices_spans",
    "chunk_max",
    "chunk_max_spans",
    "clear",
    "common",
    "concatenate",
    "count_beyond",
    "count_nonfinite",
    "count_sketch",
    "decode_natural",
    "dense_update",
    "dequantise",
    "empty",
    "encode_natural",
    "expand_rows",
    "expand_rows_spans",
    "exponential_spans",
    "filled_length",
    "from_host",
    "gather",
    "gather_counted",
    "group_bounds",
    "group_means",
    "group_norms",
    "index_dtype",
    "isa",
    "kth_largest_spans",
    "largest_gap",
    "limit_norms",
    "low_rank_product",
    "low_rank_product_all",
    "masked_update",
    "maximum",
    "minimum",
    "moments",
    "moments_spans",
    "multiply",
    "narrow",
    "normal_spans",
    "orthogonalise",
    "orthogonalise_all",
    "pack",
    "pack_bitmap",
    "pack_gaps",
    "pack_levels",
    "pack_natural",
    "pack_signs",
    "positions_of",
    "project",
    "project_all",
    "project_back",
    "project_back_all",
    "project_rows",
    "project_rows_spans",
    "quantise",
    "random_strata",
    "random_strata_spans",
    "random_words",
    "restrict",
    "sample",
    "sample_spans",
    "sampled_spans",
    "scale",
    "scatter",
    "scatter_add",
    "sketch_estimate",
    "sorted_magnitudes",
    "squared_norm",
    "threshold",
    "threshold_spans",
    "to_host",
    "top_k",
    "top_k_spans",
    "uniform",
    "union",
    "unpack",
    "unpack_bitmap",
    "unpack_gaps",
    "unpack_levels",
    "unpack_natural",
    "unpack_signs",
    "unpack_sparse",
    "vouch",
    "widen",
    "zeros",
]


def chunk_max_spans(memory: np.ndarray | None, grad: np.ndarray, spans: Spans, positions: np.ndarray) -> None:
    """As ``chunk_max`` in each of ``spans``."""
    chunk_max_in(chunk_max, memory, grad, spans, positions)


def chunk_indices_spans(positions: np.ndarray, spans: Spans, n: int, indices: np.ndarray) -> None:
    """As ``chunk_indices`` in each of ``spans``, into the whole vector."""
    chunk_indices_in(chunk_indices, positions, spans, n, indices)


def top_k_spans(memory: np.ndarray | None, grad: np.ndarray, spans: Bounds, counts: list[int]) -> np.ndarray:
    """``top_k`` in each of ``spans``, as indices into the whole vector."""
    return top_k_in(top_k, concatenate, memory, grad, spans, counts)


def threshold_spans(memory: np.ndarray | None, grad: np.ndarray, spans: Bounds,
                    lams: list[float]) -> tuple[np.ndarray, list[int]]:
    """``threshold`` in each of ``spans``, as indices into the whole vector, and how many each has."""
    return threshold_in(threshold, concatenate, memory, grad, spans, lams)


def moments_spans(memory: np.ndarray | None, grad: np.ndarray, spans: Bounds, floor: float) -> list[Moments]:
    """``moments`` in each of ``spans``."""
    return moments_in(moments, memory, grad, spans, floor)


def sample_spans(memory: np.ndarray | None, grad: np.ndarray, samples: Samples, values: np.ndarray) -> None:
    """``sample`` for each of ``samples``, one behind another."""
    sample_in(sample, memory, grad, samples, values)


def random_strata_spans(n: int, spans: Bounds, counts: list[int], key: Key) -> np.ndarray:
    """``random_strata`` in each of ``spans``, as indices into ``n`` elements."""
    return random_strata_in(random_strata, concatenate, n, spans, counts, key)


def project_rows_spans(memory: np.ndarray | None, grad: np.ndarray, spans: Bounds, row: int, width: int, seed: int,
                       out: np.ndarray) -> None:
    """``project_rows`` of each of ``spans``, one behind another."""
    project_rows_in(project_rows, memory, grad, spans, row, width, seed, out)


def expand_rows_spans(rows: np.ndarray, row: int, spans: Bounds, n: int) -> np.ndarray:
    """``expand_rows`` of rows that are counted through all ``spans``, as indices into the whole vector."""
    require_rows_of_spans(rows, row, spans, n)
    return expand_rows_in(expand_rows, concatenate, positions_of, rows, row, spans, n)


def project_all(memory: np.ndarray | None, grad: np.ndarray, matrices: Matrices, q: np.ndarray, p: np.ndarray) -> None:
    """``project`` of each of ``matrices``."""
    project_each(project, memory, grad, matrices, q, p)


def project_back_all(memory: np.ndarray | None, grad: np.ndarray, matrices: Matrices, p: np.ndarray,
                     q: np.ndarray) -> None:
    """``project_back`` of each of ``matrices``."""
    project_back_each(project_back, memory, grad, matrices, p, q)


def low_rank_product_all(p: np.ndarray, q: np.ndarray, matrices: Matrices, out: np.ndarray) -> None:
    """``low_rank_product`` of each of ``matrices``."""
    low_rank_product_each(low_rank_product, p, q, matrices, out)


def orthogonalise_all(p: np.ndarray, matrices: Matrices) -> None:
    """``orthogonalise`` of each matrix' p."""
    orthogonalise_each(orthogonalise, p, matrices)
