"""Products with few columns and their orthogonalisation, by CuPy's libraries; see :mod:`..reference.low_rank`."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from ..cuda_runtime import REAL, Array, on_device, xp
from .arguments import check, kind_of, memory_or_null


def _rank(p: Array, rows: int) -> int:
    if rows < 1:
        raise InvalidArgument(f"rows must be at least 1, got {rows}")
    if p.size % rows or not p.size:
        raise InvalidArgument(f"p must be a matrix of {rows} rows with at least one column, got {p.size} elements")
    columns: int = p.size // rows
    return columns


def _columns(grad: Array, name: str, rows: int) -> int:
    kind_of(grad, name, REAL)
    if grad.size % rows:
        raise InvalidArgument(f"{name} must be a matrix of {rows} rows, got {grad.size} elements")
    columns: int = grad.size // rows
    return columns


def _matrices(memory: Array | None, grad: Array, rows: int, p: Array, q: Array) -> tuple[Array, Array, Array]:
    """U, p and q in their shapes. U is summed into an array of its own: the product reads it more than once anyhow."""
    rank = _rank(p, rows)
    columns = _columns(grad, "grad", rows)
    memory_or_null(memory, grad)
    check(p, "p", grad.dtype)
    check(q, "q", grad.dtype, columns * rank)
    u = grad if memory is None else memory + grad
    return u.reshape(rows, columns), p.reshape(rows, rank), q.reshape(columns, rank)


@on_device
def project(memory: Array | None, grad: Array, rows: int, q: Array, p: Array) -> None:
    u, left, right = _matrices(memory, grad, rows, p, q)
    xp().matmul(u, right, out=left)


@on_device
def project_back(memory: Array | None, grad: Array, rows: int, p: Array, q: Array) -> None:
    u, left, right = _matrices(memory, grad, rows, p, q)
    xp().matmul(u.T, left, out=right)


@on_device
def low_rank_product(p: Array, q: Array, rows: int, out: Array) -> None:
    rank = _rank(p, rows)
    columns = _columns(out, "out", rows)
    check(p, "p", out.dtype)
    check(q, "q", out.dtype, columns * rank)
    xp().matmul(p.reshape(rows, rank), q.reshape(columns, rank).T, out=out.reshape(rows, columns))


@on_device
def orthogonalise(p: Array, rows: int) -> None:
    kind_of(p, "p", REAL)
    rank = _rank(p, rows)
    if rank > rows:
        raise InvalidArgument(f"at most as many columns as rows ({rows}) can be orthonormal, got {rank}")
    matrix = p.reshape(rows, rank).astype(np.float64)
    largest = xp().abs(matrix).max(axis=0)
    q, r = xp().linalg.qr(matrix / xp().where(largest > 0, largest, 1))
    p[:] = xp().where(xp().diag(r) < 0, -q, q).ravel()
