"""Linear sketches, which can be added over ranks: the count sketch, and random projections of rows.

References: Charikar, Chen and Farach-Colton, Finding frequent items in data streams, ICALP 2002 (count sketch).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ...errors import InvalidArgument
from .base import (
    Array,
    compensated,
    concatenate,
    index_dtype,
    positions_of,
    require_ascending,
    require_in_range,
    require_memory,
)
from .many import Bounds, require_spans

GOLDEN = 0x9E3779B97F4A7C15


def mix(x: Array) -> Array:
    """The finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014): 64 bits in, 64 well mixed bits out."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def count_sketch(memory: Array | None, grad: Array, rows: int, columns: int, seed: int, table: Array) -> None:
    """``table`` (rows x columns, flat) = in each row the sum of sign(i) u[i] over all i hashed to a column.

    Row r hashes i to h = mix(i + (seed + r + 1) * GOLDEN mod 2^64): column h mod columns (a power of two), sign -1
    where bit 63 is set. Sums in any order, in the array's precision or better.
    """
    u = compensated(memory, grad)
    for row, (column, sign) in enumerate(_hashes(len(u), rows, columns, seed)):
        table[row * columns : (row + 1) * columns] = np.bincount(column, sign * u.astype(np.float64), columns)


def sketch_estimate(table: Array, rows: int, columns: int, seed: int, out: Array) -> None:
    """``out[i]`` = the median over rows of what the table says u[i] is (mean of the middle two for even rows).

    NaN is largest; a zero is +0, since the order of zeros of either sign is not defined.
    """
    hashes = _hashes(len(out), rows, columns, seed)
    cast = [table[row * columns + column] * sign.astype(table.dtype) for row, (column, sign) in enumerate(hashes)]
    votes = np.sort(np.array(cast).reshape(rows, len(out)), axis=0)
    half = out.dtype.type(0.5)
    out[:] = votes[rows // 2] if rows % 2 else (votes[rows // 2 - 1] + votes[rows // 2]) * half
    out += 0  # -0 becomes +0


def project_rows(memory: Array | None, grad: Array, row: int, width: int, seed: int, out: Array) -> None:
    """Every ``row`` elements of u (the last row may be short) times ``width`` <= 64 columns of random signs.

    ``out[j * width + c] = sum_p sign(p, c) u[j * row + p]``; the sign is -1 where bit c of mix(p + (seed + 1) * GOLDEN)
    is set. Sums in any order, in the array's precision or better.
    """
    require_projection(row, width)
    u = compensated(memory, grad)
    padded = np.zeros(-(-len(u) // row) * row, u.dtype)
    padded[: len(u)] = u
    words = mix(np.arange(row, dtype=np.uint64) + _offset(seed, 0))
    signs = 1.0 - 2.0 * ((words[:, None] >> np.arange(width, dtype=np.uint64)) & np.uint64(1))
    out[:] = (padded.reshape(-1, row) @ signs).ravel()


def expand_rows(rows: Array, row: int, n: int) -> Array:
    """Ascending indices, below ``n``, of all elements of the given rows (ascending) of ``row`` elements each."""
    require_rows(row, n)
    require_in_range(rows, -(-n // row), "rows")
    require_ascending(rows, "rows")
    indices = (rows.astype(np.int64)[:, None] * row + np.arange(row)).ravel()
    return indices[indices < n].astype(index_dtype(n))


def project_rows_spans(memory: Array | None, grad: Array, spans: Bounds, row: int, width: int, seed: int,
                       out: Array) -> None:
    """``project_rows`` of each of ``spans``, one behind another: rows restart at each, whose last may be short."""
    project_rows_in(project_rows, memory, grad, spans, row, width, seed, out)


def expand_rows_spans(rows: Array, row: int, spans: Bounds, n: int) -> Array:
    """Indices, below ``n``, of all elements of the given rows, which ascend and are counted through all ``spans``."""
    require_rows_of_spans(rows, row, spans, n)
    return expand_rows_in(expand_rows, concatenate, positions_of, rows, row, spans, n)


# ---- span by span, with any module's operations

def project_rows_in(one: Callable[..., None], memory: Any, grad: Any, spans: Bounds, row: int, width: int, seed: int,
                    out: Any) -> None:
    require_projection(row, width)
    require_memory(memory, grad)
    require_spans(spans, grad.size)
    until = rows_until(spans, row)
    if out.size != until[-1] * width:
        raise InvalidArgument(f"out must have {until[-1] * width} elements, got {out.size}")
    for (start, stop), (first, last) in zip(spans, pairwise(until), strict=True):
        part = out[first * width : last * width]
        one(None if memory is None else memory[start:stop], grad[start:stop], row, width, seed, part)


def expand_rows_in(one: Callable[..., Any], concatenate: Callable[..., Any], positions_of: Callable[..., list[int]],
                   rows: Any, row: int, spans: Bounds, n: int) -> Any:
    dtype, until, found = index_dtype(n), rows_until(spans, row), []
    cuts = pairwise(positions_of(rows, until))
    for (start, stop), first, (begin, end) in zip(spans, until[:-1], cuts, strict=True):
        own = rows[begin:end]
        indices = one(own - first if first else own, row, stop - start).astype(dtype, copy=False)
        found.append(indices + start if start else indices)
    return found[0] if len(found) == 1 else concatenate(found, dtype)


def rows_until(spans: Bounds, row: int) -> list[int]:
    """How many rows there are before each span, and in all."""
    return [0, *accumulate(-(-(stop - start) // row) for start, stop in spans)]


def require_projection(row: int, width: int) -> None:
    """Refuse rows of no elements, or more columns than a hash has bits."""
    if not 1 <= width <= 64 or row < 1:
        raise InvalidArgument(f"row must be at least 1 and width in [1, 64], got {row} and {width}")


def require_rows(row: int, n: int) -> None:
    """Refuse rows of no elements, and a vector of fewer than none."""
    if row < 1 or n < 0:
        raise InvalidArgument(f"row must be at least 1 and n at least 0, got {row} and {n}")


def require_rows_of_spans(rows: Array, row: int, spans: Bounds, n: int) -> None:
    """Refuse spans that do not lie in a vector of ``n``, and rows that are not ascending numbers of theirs."""
    require_rows(row, n)
    require_spans(spans, n)
    require_in_range(rows, rows_until(spans, row)[-1], "rows")
    require_ascending(rows, "rows")


def _hashes(n: int, rows: int, columns: int, seed: int) -> list[tuple[Array, Array]]:
    if not 1 <= rows <= 15 or columns < 1 or columns & (columns - 1):
        raise InvalidArgument(f"a sketch must have 1 to 15 rows and 2^m columns, got {rows} and {columns}")
    hashed = [mix(np.arange(n, dtype=np.uint64) + _offset(seed, row)) for row in range(rows)]
    return [((h % np.uint64(columns)).astype(np.int64), 1.0 - 2.0 * (h >> np.uint64(63))) for h in hashed]


def _offset(seed: int, row: int) -> np.uint64:
    return np.uint64((seed + row + 1) * GOLDEN % 2**64)
