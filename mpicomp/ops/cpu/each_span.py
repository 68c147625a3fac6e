"""Operations in many spans, or on many matrices, by compiled operations on one."""

from __future__ import annotations

from .._cpu import (
    chunk_indices,
    chunk_max,
    expand_rows,
    low_rank_product,
    moments,
    orthogonalise,
    project,
    project_back,
    project_rows,
    random_strata,
    sample,
    threshold,
    top_k,
)
from ..arguments import Array, Bounds, Key, Matrices, Moments, Samples, Spans, require_rows_of_spans
from ..host import concatenate, positions_of
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


def chunk_max_spans(memory: Array | None, grad: Array, spans: Spans, positions: Array) -> None:
    """As ``chunk_max`` in each of ``spans``."""
    chunk_max_in(chunk_max, memory, grad, spans, positions)


def chunk_indices_spans(positions: Array, spans: Spans, n: int, indices: Array) -> None:
    """As ``chunk_indices`` in each of ``spans``, into the whole vector."""
    chunk_indices_in(chunk_indices, positions, spans, n, indices)


def top_k_spans(memory: Array | None, grad: Array, spans: Bounds, counts: list[int]) -> Array:
    """``top_k`` in each of ``spans``, as indices into the whole vector."""
    return top_k_in(top_k, concatenate, memory, grad, spans, counts)


def threshold_spans(memory: Array | None, grad: Array, spans: Bounds,
                    lams: list[float]) -> tuple[Array, list[int]]:
    """``threshold`` in each of ``spans``, as indices into the whole vector, and how many each has."""
    return threshold_in(threshold, concatenate, memory, grad, spans, lams)


def moments_spans(memory: Array | None, grad: Array, spans: Bounds, floor: float) -> list[Moments]:
    """``moments`` in each of ``spans``."""
    return moments_in(moments, memory, grad, spans, floor)


def sample_spans(memory: Array | None, grad: Array, samples: Samples, values: Array) -> None:
    """``sample`` for each of ``samples``, one behind another."""
    sample_in(sample, memory, grad, samples, values)


def random_strata_spans(n: int, spans: Bounds, counts: list[int], key: Key) -> Array:
    """``random_strata`` in each of ``spans``, as indices into ``n`` elements."""
    return random_strata_in(random_strata, concatenate, n, spans, counts, key)


def project_rows_spans(memory: Array | None, grad: Array, spans: Bounds, row: int, width: int, seed: int,
                       out: Array) -> None:
    """``project_rows`` of each of ``spans``, one behind another."""
    project_rows_in(project_rows, memory, grad, spans, row, width, seed, out)


def expand_rows_spans(rows: Array, row: int, spans: Bounds, n: int) -> Array:
    """``expand_rows`` of rows that are counted through all ``spans``, as indices into the whole vector."""
    require_rows_of_spans(rows, row, spans, n)
    return expand_rows_in(expand_rows, concatenate, positions_of, rows, row, spans, n)


def project_all(memory: Array | None, grad: Array, matrices: Matrices, q: Array, p: Array) -> None:
    """``project`` of each of ``matrices``."""
    project_each(project, memory, grad, matrices, q, p)


def project_back_all(memory: Array | None, grad: Array, matrices: Matrices, p: Array,
                     q: Array) -> None:
    """``project_back`` of each of ``matrices``."""
    project_back_each(project_back, memory, grad, matrices, p, q)


def low_rank_product_all(p: Array, q: Array, matrices: Matrices, out: Array) -> None:
    """``low_rank_product`` of each of ``matrices``."""
    low_rank_product_each(low_rank_product, p, q, matrices, out)


def orthogonalise_all(p: Array, matrices: Matrices) -> None:
    """``orthogonalise`` of each matrix' p."""
    orthogonalise_each(orthogonalise, p, matrices)
