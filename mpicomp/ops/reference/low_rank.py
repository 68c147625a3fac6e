"""Products of a compensated matrix with few columns, and their orthogonalisation. Matrices are flat and row-major.

Sums in any order, in the array's precision or better.
"""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from .base import Array, compensated


def project(memory: Array | None, grad: Array, rows: int, q: Array, p: Array) -> None:
    """``p`` (rows x r) ``= U q``, with U = u as a matrix of ``rows`` rows and ``q`` (columns x r)."""
    u, rank = _matrix(memory, grad, rows, len(p))
    p[:] = (u @ q.reshape(-1, rank)).ravel()


def project_back(memory: Array | None, grad: Array, rows: int, p: Array, q: Array) -> None:
    """``q`` (columns x r) ``= U^T p``."""
    u, rank = _matrix(memory, grad, rows, len(p))
    q[:] = (u.T @ p.reshape(rows, rank)).ravel()


def low_rank_product(p: Array, q: Array, rows: int, out: Array) -> None:
    """``out`` (rows x columns) ``= p q^T``."""
    rank = len(p) // rows
    out[:] = (p.reshape(rows, rank) @ q.reshape(-1, rank).T).ravel()


def orthogonalise(p: Array, rows: int) -> None:
    """Replace the columns of ``p`` (rows x r, r <= rows) by orthonormal ones that span at least the same space.

    By Householder reflections: also where columns are dependent or zero.
    """
    matrix = p.reshape(rows, -1)
    if matrix.shape[1] > rows:
        raise InvalidArgument(f"at most as many columns as rows ({rows}) can be orthonormal, got {matrix.shape[1]}")
    p[:] = np.linalg.qr(matrix)[0].ravel()


def _matrix(memory: Array | None, grad: Array, rows: int, size: int) -> tuple[Array, int]:
    if rows < 1 or len(grad) % rows or size % rows:
        raise InvalidArgument(f"{len(grad)} and {size} elements must make whole matrices of {rows} rows")
    return compensated(memory, grad).reshape(rows, -1), size // rows
