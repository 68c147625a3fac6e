"""Products of a compensated matrix with few columns, and their orthogonalisation. Matrices are flat and row-major.

Sums in any order, in the array's precision or better.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...errors import InvalidArgument
from ..arguments import Array, Matrices, require_memory, require_packed
from .base import compensated
from .many import split


def project(memory: Array | None, grad: Array, matrices: Matrices, q: Array, p: Array) -> None:
    """``p`` (rows x rank) ``= U q`` of each matrix U, a part of u, with ``q`` (columns x rank)."""
    require_memory(memory, grad)
    for u, own_p, own_q in _each(compensated(memory, grad), matrices, p, q):
        own_p[:] = u @ own_q


def project_back(memory: Array | None, grad: Array, matrices: Matrices, p: Array, q: Array) -> None:
    """``q`` (columns x rank) ``= U^T p`` of each matrix U, a part of u."""
    require_memory(memory, grad)
    for u, own_p, own_q in _each(compensated(memory, grad), matrices, p, q):
        own_q[:] = u.T @ own_p


def low_rank_product(p: Array, q: Array, matrices: Matrices, out: Array) -> None:
    """``out`` (rows x columns) ``= p q^T`` of each matrix; elements between them stay as they are."""
    for whole, own_p, own_q in _each(out, matrices, p, q):
        whole[:] = own_p @ own_q.T


def orthogonalise(p: Array, matrices: Matrices) -> None:
    """Replace the columns of each ``p`` (rows x rank, rank <= rows) by orthonormal ones of at least the same span.

    They are Q of p = Q R with a diagonal of R that is nowhere negative, by Householder reflections in float64: as
    orthonormal where columns depend on each other or are zero. Which direction a column then gets that depends on
    those before it is up to rounding: the same bits for the same input from one implementation, not from all.
    """
    require_packed(matrices, max((stop for _, stop, *_ in matrices), default=0), p=p)
    parts = split(p, [rows * rank for _, _, rows, rank in matrices])
    for part, (_, _, rows, rank) in zip(parts, matrices, strict=True):
        if rank > rows:
            raise InvalidArgument(f"at most as many columns as rows ({rows}) can be orthonormal, got {rank}")
        matrix = part.reshape(rows, rank).astype(np.float64)
        largest = np.abs(matrix).max(axis=0)  # scaled, since the square of a large column may overflow
        q, r = np.linalg.qr(matrix / np.where(largest > 0, largest, 1))
        part[:] = np.where(np.diag(r) < 0, -q, q).ravel()


def _each(whole: Array, matrices: Matrices, p: Array, q: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Each matrix of ``whole``, its p and its q as views of two dimensions."""
    require_packed(matrices, len(whole), p=p, q=q)
    of_p = split(p, [rows * rank for _, _, rows, rank in matrices])
    of_q = split(q, [(stop - start) // rows * rank for start, stop, rows, rank in matrices])
    for (start, stop, rows, rank), own_p, own_q in zip(matrices, of_p, of_q, strict=True):
        u = whole[start:stop].reshape(rows, (stop - start) // rows)
        yield u, own_p.reshape(rows, rank), own_q.reshape(-1, rank)
