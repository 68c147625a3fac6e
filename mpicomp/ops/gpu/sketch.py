"""Launchers of the linear sketches; see :mod:`..oracle.sketch`.

In which order threads add to a cell of the count sketch is not fixed: its sums may differ in the last bits from run
to run, also on one device.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...errors import InvalidArgument
from ..arguments import dtype_name, require_projection, require_rows, require_sketch, require_spans
from ..host import index_dtype
from .arguments import check, kind_of, memory_or_null, remember, require_indices
from .base import empty, vouched
from .collect import table_of
from .cuda_runtime import (
    INDEX,
    REAL,
    SKETCH_ROWS,
    WARP,
    Array,
    blocks_for,
    launch,
    on_device,
    packs,
    xp,
)


def _check_sketch(rows: int, columns: int, table: Array, dtype: npt.DTypeLike) -> None:
    require_sketch(rows, columns)
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
def project_rows(memory: Array | None, grad: Array, spans: list[tuple[int, int]], row: int, width: int, seed: int,
                       out: Array) -> None:
    require_projection(row, width)
    t, m = kind_of(grad, "grad", REAL), memory_or_null(memory, grad)
    require_spans(spans, grad.size)
    count, *table = _rows_of(spans, row, grad.size)
    check(out, "out", grad.dtype, count * width)
    launch("sketch", f"project_rows<{t}>", blocks_for(count * WARP), m, grad, *table, np.int32(width), _bits(seed), out)


@on_device
def expand_rows(rows: Array, row: int, spans: list[tuple[int, int]], n: int) -> Array:
    require_rows(row, n)
    require_spans(spans, n)
    kind, k, dtype = kind_of(rows, "rows", INDEX), np.int64(rows.size), index_dtype(n)
    count, *table = _rows_of(spans, row, n)
    require_indices(rows, count, ascending=True, name="rows")
    if rows.size == 0:
        return remember(empty(0, dtype), 0)
    lengths = empty(rows.size, np.int64)
    launch("sketch", f"row_lengths<{kind}>", blocks_for(k), rows, k, *table, lengths)
    until = xp().cumsum(lengths)
    indices = empty(int(until[-1]), dtype)
    name = f"write_rows<{kind}, {INDEX[dtype_name(dtype)]}>"
    launch("sketch", name, blocks_for(rows.size * WARP), rows, k, *table, until, indices)
    return vouched(indices, spans, n)


def _rows_of(spans: list[tuple[int, int]], row: int, n: int) -> tuple[int, Array, np.int64, np.int64]:
    """Number of rows in all spans of ``n`` elements; their table, the number of spans, elements per row."""
    row = min(row, max(1, n))
    count, table = table_of(spans, row)
    return count, table, np.int64(len(spans)), np.int64(row)
