"""Operations in many spans, or on many matrices, by compiled operations on one."""

from __future__ import annotations

from .._cpu import (
    chunk_indices_in_span,
    chunk_max_in_span,
    expand_rows_in_span,
    low_rank_product_matrix,
    moments_in_span,
    orthogonalise_matrix,
    project_back_matrix,
    project_matrix,
    project_rows_in_span,
    random_strata_in_span,
    sample_in_span,
    threshold_in_span,
    top_k_in_spans,
)
from ..arguments import Array, Bounds, Key, Matrices, Moments, Samples, Spans, is_whole, require_rows_of_spans
from ..host import positions_of
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
)
from .kept_arrays import concatenate


def chunk_max(memory: Array | None, grad: Array, spans: Spans, positions: Array) -> None:
    if is_whole(spans, grad.size):
        chunk_max_in_span(memory, grad, spans[0][2], positions)
    else:
        chunk_max_in(chunk_max_in_span, memory, grad, spans, positions)


def chunk_indices(positions: Array, spans: Spans, n: int, indices: Array, known: bool = False) -> None:
    if is_whole(spans, n):
        chunk_indices_in_span(positions, spans[0][2], n, indices)
    else:
        chunk_indices_in(chunk_indices_in_span, positions, spans, n, indices)


def top_k(memory: Array | None, grad: Array, spans: Bounds, counts: list[int]) -> Array:
    return top_k_in_spans(memory, grad, spans, counts)


def threshold(memory: Array | None, grad: Array, spans: Bounds, lams: list[float]) -> tuple[Array, list[int]]:
    return threshold_in(threshold_in_span, concatenate, memory, grad, spans, lams)


def moments(memory: Array | None, grad: Array, spans: Bounds, floor: float) -> list[Moments]:
    return moments_in(moments_in_span, memory, grad, spans, floor)


def sample(memory: Array | None, grad: Array, samples: Samples, values: Array) -> None:
    sample_in(sample_in_span, memory, grad, samples, values)


def random_strata(n: int, spans: Bounds, counts: list[int], key: Key) -> Array:
    return random_strata_in(random_strata_in_span, concatenate, n, spans, counts, key)


def project_rows(memory: Array | None, grad: Array, spans: Bounds, row: int, width: int, seed: int,
                 out: Array) -> None:
    project_rows_in(project_rows_in_span, memory, grad, spans, row, width, seed, out)


def expand_rows(rows: Array, row: int, spans: Bounds, n: int) -> Array:
    require_rows_of_spans(rows, row, spans, n)
    return expand_rows_in(expand_rows_in_span, concatenate, positions_of, rows, row, spans, n)


def project(memory: Array | None, grad: Array, matrices: Matrices, q: Array, p: Array) -> None:
    project_each(project_matrix, memory, grad, matrices, q, p)


def project_back(memory: Array | None, grad: Array, matrices: Matrices, p: Array, q: Array) -> None:
    project_back_each(project_back_matrix, memory, grad, matrices, p, q)


def low_rank_product(p: Array, q: Array, matrices: Matrices, out: Array) -> None:
    low_rank_product_each(low_rank_product_matrix, p, q, matrices, out)


def orthogonalise(p: Array, matrices: Matrices) -> None:
    orthogonalise_each(orthogonalise_matrix, p, matrices)
