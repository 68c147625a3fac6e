"""Launchers of products with few columns and their orthogonalisation; see :mod:`..oracle.low_rank`.

All matrices of a vector go in one launch. Those of more columns than the kernels keep in registers (`RANKS`) go one by
one through cuBLAS and cuSOLVER, which are made for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ...errors import InvalidArgument
from ..arguments import Matrices, dtype_name, require_packed
from ..spans import low_rank_product_each, orthogonalise_each, project_back_each, project_each
from .arguments import check, kind_of, memory_or_null
from .cuda_runtime import (
    LONGEST,
    MAX_BLOCKS,
    PACK_BYTES,
    PANEL,
    RANKS,
    REAL,
    THREADS,
    WARP,
    Array,
    blocks_for,
    kept_on_device,
    launch,
    on_device,
    xp,
)

# ---- many: blocks take tiles of the matrices in turn

@on_device
def project(memory: Array | None, grad: Array, matrices: Matrices, q: Array, p: Array) -> None:
    t, m, width = _checked(memory, grad, matrices, p, q)
    if width is None:
        project_each(_project, memory, grad, matrices, q, p)
        return
    plan = _plan(matrices, _rows_of_block(width), LONGEST, "p")
    _with_parts(plan, p, lambda sums: launch("low_rank", f"project<{t}, {width}>", min(MAX_BLOCKS, plan.tiles), m, grad,
                                            plan.table, np.int64(len(matrices)), np.int64(plan.tiles), q, sums))


@on_device
def project_back(memory: Array | None, grad: Array, matrices: Matrices, p: Array, q: Array) -> None:
    t, m, width = _checked(memory, grad, matrices, p, q)
    if width is None:
        project_back_each(_project_back, memory, grad, matrices, p, q)
        return
    plan = _plan(matrices, PANEL // width, _stripe(grad), "q")
    _with_parts(plan, q, lambda sums: launch("low_rank", f"project_back<{t}, {width}>", min(MAX_BLOCKS, plan.tiles), m,
                                            grad, plan.table, np.int64(len(matrices)), np.int64(plan.tiles), p, sums))


@on_device
def low_rank_product(p: Array, q: Array, matrices: Matrices, out: Array) -> None:
    t, _, width = _checked(None, out, matrices, p, q)
    if width is None:
        low_rank_product_each(_low_rank_product, p, q, matrices, out)
        return
    plan = _plan(matrices, PANEL // width, _stripe(out), "q")
    launch("low_rank", f"low_rank_product<{t}, {width}>", min(MAX_BLOCKS, plan.tiles), p, q, plan.table,
           np.int64(len(matrices)), np.int64(plan.tiles), out)


@on_device
def orthogonalise(p: Array, matrices: Matrices) -> None:
    """One block a matrix."""
    t = kind_of(p, "p", REAL)
    require_packed(matrices, max((stop for _, stop, *_ in matrices), default=0), p=p)
    for _, _, rows, rank in matrices:
        if rank > rows:
            raise InvalidArgument(f"at most as many columns as rows ({rows}) can be orthonormal, got {rank}")
    width = _width(matrices)
    if width is None:
        orthogonalise_each(_orthogonalise, p, matrices)
        return
    count, work = len(matrices), xp().empty(2 * p.size, np.float64)
    table = _bounds_and_ranks(matrices)
    launch("orthogonalise", f"orthogonalise<{t}, {width}>", min(MAX_BLOCKS, count), p, table[: count + 1],
           table[count + 1 :], np.int64(count), work)


def _checked(memory: Array | None, whole: Array, matrices: Matrices, p: Array,
             q: Array) -> tuple[str, Array, int | None]:
    """The type, what stands for the memory, and the columns a kernel keeps (None: too many)."""
    t = kind_of(whole, "grad", REAL)
    m = memory_or_null(memory, whole)
    check(p, "p", whole.dtype)
    check(q, "q", whole.dtype)
    require_packed(matrices, whole.size, p=p, q=q)
    return t, m, _width(matrices)


def _width(matrices: Matrices) -> int | None:
    most = max((rank for *_, rank in matrices), default=1)
    return next((width for width in RANKS if most <= width), None)


def _rows_of_block(width: int) -> int:
    """Rows of a block of `project`: `rows_a_warp` in low_rank.cu."""
    return THREADS // WARP * (4 if width < 16 else 2)


def _stripe(whole: Array) -> int:
    """Columns of a block: a warp's, 16 bytes a thread."""
    return WARP * PACK_BYTES // whole.dtype.itemsize


class Plan(NamedTuple):
    """Number of the matrices' tiles, and the tables on the device of their places and of the sums to add up."""

    tiles: int
    table: Array
    parts: int  # elements of all sums before they are added up; 0 where each is made at once
    sums: Array | None


@kept_on_device
def _plan(matrices: Matrices, tile_rows: int, tile_columns: int, target: str) -> Plan:
    """Tiles for sums of products that end up in packed ``target``: in p along columns, in q along rows."""
    start, stop, rows, rank = np.array(matrices, np.int64).reshape(-1, 4).T
    columns = (stop - start) // rows
    high, wide = -(-rows // tile_rows), -(-columns // tile_columns)
    if target == "p":
        wide = np.maximum(1, wide)  # of no columns the sum is zero, and has to be written
    p, q = _first(rows * rank), _first(columns * rank)
    number, ends = (wide, p) if target == "p" else (high, q)
    size, split = np.diff(ends), bool((number > 1).any())
    begins = _first(size * number) if split else ends
    tiles = _first(high * wide)
    table = np.concatenate([tiles, start, rows, columns, rank, p[:-1], q[:-1], begins[:-1]])
    sums = xp().asarray(np.concatenate([ends, begins[:-1], number])) if split else None
    return Plan(int(tiles[-1]), xp().asarray(table), int(begins[-1]) if split else 0, sums)


def _first(sizes: np.ndarray) -> np.ndarray:
    """Begins of blocks of these sizes one behind another, and the end of the last."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


@kept_on_device
def _bounds_and_ranks(matrices: Matrices) -> Array:
    _, _, rows, rank = np.array(matrices, np.int64).reshape(-1, 4).T
    return xp().asarray(np.concatenate([_first(rows * rank), rank]))


def _with_parts(plan: Plan, target: Array, run: Callable[[Array], None]) -> None:
    """``run`` with room for its sums: the target, or parts of it that are added up after."""
    if plan.sums is None:
        run(target)
        return
    parts, count = xp().empty(plan.parts, target.dtype), plan.sums.size // 3
    run(parts)
    launch("low_rank", f"add_parts<{REAL[dtype_name(target.dtype)]}>", blocks_for(target.size), parts, plan.sums,
           np.int64(count), np.int64(target.size), target)


# ---- one by one, by CuPy's libraries

def _shaped(whole: Array, rows: int, p: Array, q: Array) -> tuple[Array, Array, Array]:
    rank = p.size // rows
    return whole.reshape(rows, -1), p.reshape(rows, rank), q.reshape(-1, rank)


def _summed(memory: Array | None, grad: Array) -> Array:
    """U in an array of its own: the product reads it more than once anyhow."""
    return grad if memory is None else memory + grad


def _project(memory: Array | None, grad: Array, rows: int, q: Array, p: Array) -> None:
    u, left, right = _shaped(_summed(memory, grad), rows, p, q)
    xp().matmul(u, right, out=left)


def _project_back(memory: Array | None, grad: Array, rows: int, p: Array, q: Array) -> None:
    u, left, right = _shaped(_summed(memory, grad), rows, p, q)
    xp().matmul(u.T, left, out=right)


def _low_rank_product(p: Array, q: Array, rows: int, out: Array) -> None:
    whole, left, right = _shaped(out, rows, p, q)
    xp().matmul(left, right.T, out=whole)


def _orthogonalise(p: Array, rows: int) -> None:
    matrix = p.reshape(rows, -1).astype(np.float64)
    largest = xp().abs(matrix).max(axis=0)
    q, r = xp().linalg.qr(matrix / xp().where(largest > 0, largest, 1))
    p[:] = xp().where(xp().diag(r) < 0, -q, q).ravel()
