"""Products of a compensated matrix with few columns, and their orthogonalisation. Matrices are flat and row-major.

Sums in any order, in the array's precision or better.
"""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from ..arguments import Array, Matrices, require_memory, require_packed
from .base import compensated
from .many import split


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


# ---- many matrices in one vector, their p and their q packed one behind another

def project_all(memory: Array | None, grad: Array, matrices: Matrices, q: Array, p: Array) -> None:
    """``project`` of each of ``matrices``."""
    require_memory(memory, grad)
    require_packed(matrices, len(grad), p=p, q=q)
    u = compensated(memory, grad)
    for (start, stop, rows, _), own_q, own_p in zip(matrices, _each_q(q, matrices), _each_p(p, matrices), strict=True):
        project(None, u[start:stop], rows, own_q, own_p)


def project_back_all(memory: Array | None, grad: Array, matrices: Matrices, p: Array, q: Array) -> None:
    """``project_back`` of each of ``matrices``."""
    require_memory(memory, grad)
    require_packed(matrices, len(grad), p=p, q=q)
    u = compensated(memory, grad)
    for (start, stop, rows, _), own_q, own_p in zip(matrices, _each_q(q, matrices), _each_p(p, matrices), strict=True):
        project_back(None, u[start:stop], rows, own_p, own_q)


def low_rank_product_all(p: Array, q: Array, matrices: Matrices, out: Array) -> None:
    """``low_rank_product`` of each of ``matrices``; what lies between them in ``out`` stays as it is."""
    require_packed(matrices, len(out), p=p, q=q)
    for (start, stop, rows, _), own_q, own_p in zip(matrices, _each_q(q, matrices), _each_p(p, matrices), strict=True):
        low_rank_product(own_p, own_q, rows, out[start:stop])


def orthogonalise_all(p: Array, matrices: Matrices) -> None:
    """``orthogonalise`` of each matrix' p."""
    require_packed(matrices, max((stop for _, stop, *_ in matrices), default=0), p=p)
    for (_, _, rows, _), own_p in zip(matrices, _each_p(p, matrices), strict=True):
        orthogonalise(own_p, rows)


def _each_p(p: Array, matrices: Matrices) -> list[Array]:
    return split(p, [rows * rank for _, _, rows, rank in matrices])


def _each_q(q: Array, matrices: Matrices) -> list[Array]:
    return split(q, [(stop - start) // rows * rank for start, stop, rows, rank in matrices])


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
