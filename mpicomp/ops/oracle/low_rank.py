"""Products of a compensated matrix with few columns, and their orthogonalisation. Matrices are flat and row-major.

Sums in any order, in the array's precision or better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...errors import InvalidArgument
from .base import Array, compensated, require_memory

Matrices = list[tuple[int, int, int, int]]  # of each matrix in a vector: start, stop, rows, rank


def project(memory: Array | None, grad: Array, rows: int, q: Array, p: Array) -> None:
    """``p`` (rows x r) ``= U q``, with U = u as a matrix of ``rows`` rows and ``q`` (columns x r)."""
    u, rank = _matrix(memory, grad, rows, p)
    p[:] = (u @ q.reshape(-1, rank)).ravel()


def project_back(memory: Array | None, grad: Array, rows: int, p: Array, q: Array) -> None:
    """``q`` (columns x r) ``= U^T p``."""
    u, rank = _matrix(memory, grad, rows, p)
    q[:] = (u.T @ p.reshape(rows, rank)).ravel()


def low_rank_product(p: Array, q: Array, rows: int, out: Array) -> None:
    """``out`` (rows x columns) ``= p q^T``."""
    rank = _rank(p, rows)
    out[:] = (p.reshape(rows, rank) @ q.reshape(-1, rank).T).ravel()


def orthogonalise(p: Array, rows: int) -> None:
    """Replace the columns of ``p`` (rows x r, r <= rows) by orthonormal ones that span at least the same space.

    They are Q of p = Q R with a diagonal of R that is nowhere negative, by Householder reflections in float64: as
    orthonormal where columns depend on each other or are zero. Which direction a column then gets that depends on
    those before it is up to rounding: the same bits for the same input from one implementation, not from all.
    """
    rank = _rank(p, rows)
    if rank > rows:
        raise InvalidArgument(f"at most as many columns as rows ({rows}) can be orthonormal, got {rank}")
    matrix = p.reshape(rows, rank).astype(np.float64)
    largest = np.abs(matrix).max(axis=0)  # a column's scale is no part of its direction, and its square may overflow
    q, r = np.linalg.qr(matrix / np.where(largest > 0, largest, 1))
    p[:] = np.where(np.diag(r) < 0, -q, q).ravel()


# ---- many matrices in one vector, their p and their q packed one behind another; with any module's operation on one

def project_all(memory: Array | None, grad: Array, matrices: Matrices, q: Array, p: Array) -> None:
    """``project`` of each of ``matrices``."""
    project_each(project, memory, grad, matrices, q, p)


def project_back_all(memory: Array | None, grad: Array, matrices: Matrices, p: Array, q: Array) -> None:
    """``project_back`` of each of ``matrices``."""
    project_back_each(project_back, memory, grad, matrices, p, q)


def low_rank_product_all(p: Array, q: Array, matrices: Matrices, out: Array) -> None:
    """``low_rank_product`` of each of ``matrices``; what lies between them in ``out`` stays as it is."""
    low_rank_product_each(low_rank_product, p, q, matrices, out)


def orthogonalise_all(p: Array, matrices: Matrices) -> None:
    """``orthogonalise`` of each matrix' p."""
    orthogonalise_each(orthogonalise, p, matrices)


def project_each(one: Callable[..., None], memory: Array | None, grad: Array, matrices: Matrices, q: Array,
                 p: Array) -> None:
    require_memory(memory, grad)
    require_packed(matrices, grad.size, p=p, q=q)
    for own, rows, of_p, of_q in _places(matrices):
        one(None if memory is None else memory[own], grad[own], rows, q[of_q], p[of_p])


def project_back_each(one: Callable[..., None], memory: Array | None, grad: Array, matrices: Matrices, p: Array,
                      q: Array) -> None:
    require_memory(memory, grad)
    require_packed(matrices, grad.size, p=p, q=q)
    for own, rows, of_p, of_q in _places(matrices):
        one(None if memory is None else memory[own], grad[own], rows, p[of_p], q[of_q])


def low_rank_product_each(one: Callable[..., None], p: Array, q: Array, matrices: Matrices, out: Array) -> None:
    require_packed(matrices, out.size, p=p, q=q)
    for own, rows, of_p, of_q in _places(matrices):
        one(p[of_p], q[of_q], rows, out[own])


def orthogonalise_each(one: Callable[..., None], p: Array, matrices: Matrices) -> None:
    require_packed(matrices, max((stop for _, stop, *_ in matrices), default=0), p=p)
    for _, rows, of_p, _ in _places(matrices):
        one(p[of_p], rows)


def _places(matrices: Matrices) -> Iterator[tuple[slice, int, slice, slice]]:
    """Of each matrix its part of the vector, its rows, and its parts of the packed p and q."""
    p = q = 0
    for start, stop, rows, rank in matrices:
        p_stop, q_stop = p + rows * rank, q + (stop - start) // rows * rank
        yield slice(start, stop), rows, slice(p, p_stop), slice(q, q_stop)
        p, q = p_stop, q_stop


def require_packed(matrices: Matrices, n: int, **packed: Array) -> None:
    """Refuse matrices that do not lie in a vector of ``n``, and packed ``p`` or ``q`` of another length than theirs."""
    for start, stop, rows, rank in matrices:
        if not (0 <= start <= stop <= n and rows >= 1 and rank >= 1 and (stop - start) % rows == 0):
            raise InvalidArgument(f"matrices must lie in [0, {n}), with whole rows and at least one column of p, got "
                                  f"{start} to {stop} with {rows} rows and {rank} columns of p")
    for name, array in packed.items():
        total = sum((rows if name == "p" else (stop - start) // rows) * rank for start, stop, rows, rank in matrices)
        if array.size != total:
            raise InvalidArgument(f"{name} must have {total} elements, got {array.size}")


def _matrix(memory: Array | None, grad: Array, rows: int, p: Array) -> tuple[Array, int]:
    rank = _rank(p, rows)
    if len(grad) % rows:
        raise InvalidArgument(f"grad must be a matrix of {rows} rows, got {len(grad)} elements")
    return compensated(memory, grad).reshape(rows, len(grad) // rows), rank


def _rank(p: Array, rows: int) -> int:
    if rows < 1:
        raise InvalidArgument(f"rows must be at least 1, got {rows}")
    if len(p) % rows or not len(p):
        raise InvalidArgument(f"p must be a matrix of {rows} rows with at least one column, got {len(p)} elements")
    return len(p) // rows
