"""Launchers of the linear sketches; see :mod:`..reference.sketch`.

In which order threads add to a cell of the count sketch is not fixed: its sums may differ in the last bits from run
to run, also on one device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import InvalidArgument
from ..cuda_runtime import (
    INDEX,
    REAL,
    SKETCH_ROWS,
    WARP,
    Array,
    blocks_for,
    launch,
    on_device,
    packs,
    to_host,
    xp,
)
from ..reference import index_dtype
from .arguments import check, kind_of, memory_or_null, require_indices, vouch


def _check_sketch(rows: int, columns: int, table: Array, dtype: Any) -> None:
    if not 1 <= rows <= 15 or columns < 1 or columns & (columns - 1):
        raise InvalidArgument(f"a sketch must have 1 to 15 rows and 2^m columns, got {rows} and {columns}")
    check(table, "table", dtype)
    if table.size != rows * columns:
        raise InvalidArgument(f"table must have {rows} x {columns} elements, got {table.size}")


def _bits(seed: int) -> np.uint64:
    return np.uint64(seed % 2**64)


@on_device
def count_sketch(memory: Array | None, grad: Array, rows: int, columns: int, seed: int, table: Array) -> None:
    t, m = kind_of(grad, "grad", REAL), memory_or_null(memory, grad)
    _check_sketch(rows, columns, table, grad.dtype)
    table.fill(0)
    scalars = np.int64(grad.size), np.int32(rows), np.int64(columns), _bits(seed)
    launch("sketch", f"count_sketch<{t}>", blocks_for(packs(grad)), m, grad, *scalars, table)


@on_device
def sketch_estimate(table: Array, rows: int, columns: int, seed: int, out: Array) -> None:
    t = kind_of(table, "table", REAL)
    _check_sketch(rows, columns, table, table.dtype)
    check(out, "out", table.dtype)
    name = f"sketch_estimate<{t}, {rows if rows in SKETCH_ROWS else 0}>"
    scalars = np.int32(rows), np.int64(columns), _bits(seed)
    launch("sketch", name, blocks_for(out.size), table, *scalars, out, np.int64(out.size))


@on_device
def project_rows(memory: Array | None, grad: Array, row: int, width: int, seed: int, out: Array) -> None:
    if not 1 <= width <= 64 or row < 1:
        raise InvalidArgument(f"row must be at least 1 and width in [1, 64], got {row} and {width}")
    t, m, count = kind_of(grad, "grad", REAL), memory_or_null(memory, grad), -(-grad.size // row)
    check(out, "out", grad.dtype, count * width)
    scalars = np.int64(grad.size), np.int64(min(row, max(1, grad.size))), np.int32(width), _bits(seed)
    launch("sketch", f"project_rows<{t}>", blocks_for(count * WARP), m, grad, *scalars, out)


@on_device
def expand_rows(rows: Array, row: int, n: int) -> Array:
    if row < 1 or n < 0:
        raise InvalidArgument(f"row must be at least 1 and n at least 0, got {row} and {n}")
    kind_of(rows, "rows", INDEX)
    count = -(-n // row)
    require_indices(rows, count, ascending=True, name="rows")
    indices = (rows.astype(np.int64)[:, None] * row + xp().arange(row)).ravel().astype(index_dtype(n))
    is_short = rows.size and int(to_host(rows[-1:])[0]) == count - 1
    return vouch(indices[: rows.size * row - (count * row - n if is_short else 0)], n)
