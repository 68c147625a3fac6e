"""Linear sketches, which can be added over ranks: the count sketch, and random projections of rows.

References: Charikar, Chen and Farach-Colton, Finding frequent items in data streams, ICALP 2002 (count sketch).
"""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from ..arguments import (
    Array,
    Bounds,
    require_memory,
    require_projection,
    require_rows_of_spans,
    require_sketch,
    require_spans,
)
from .base import compensated, to_indices
from .many import split

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


def project_rows(memory: Array | None, grad: Array, spans: Bounds, row: int, width: int, seed: int,
                       out: Array) -> None:
    """Every ``row`` elements of u (a span's last row may be short) times ``width`` <= 64 columns of random signs.

    ``out[j * width + c] = sum_p sign(p, c) u[p-th of row j]``, rows counted through all spans; the sign is -1 where
    bit c of mix(p + (seed + 1) * GOLDEN) is set. Sums in any order, in the array's precision or better.
    """
    require_projection(row, width)
    require_memory(memory, grad)
    require_spans(spans, len(grad))
    sizes = [-(-(stop - start) // row) * width for start, stop in spans]
    if len(out) != sum(sizes):
        raise InvalidArgument(f"out must have {sum(sizes)} elements, got {len(out)}")
    u = compensated(memory, grad)
    words = mix(np.arange(row, dtype=np.uint64) + _offset(seed, 0))
    signs = 1.0 - 2.0 * ((words[:, None] >> np.arange(width, dtype=np.uint64)) & np.uint64(1))
    for (start, stop), part in zip(spans, split(out, sizes), strict=True):
        padded = np.zeros(-(-(stop - start) // row) * row, u.dtype)
        padded[: stop - start] = u[start:stop]
        part[:] = (padded.reshape(-1, row) @ signs).ravel()


def expand_rows(rows: Array, row: int, spans: Bounds, n: int) -> Array:
    """Indices, below ``n``, of all elements of the given rows, which ascend and are counted through all ``spans``."""
    require_rows_of_spans(rows, row, spans, n)
    every = [np.arange(at, min(at + row, stop)) for start, stop in spans for at in range(start, stop, row)]
    return to_indices(np.concatenate([np.empty(0, np.int64), *(every[number] for number in rows)]), n)


def _hashes(n: int, rows: int, columns: int, seed: int) -> list[tuple[Array, Array]]:
    require_sketch(rows, columns)
    hashed = [mix(np.arange(n, dtype=np.uint64) + _offset(seed, row)) for row in range(rows)]
    return [((h % np.uint64(columns)).astype(np.int64), 1.0 - 2.0 * (h >> np.uint64(63))) for h in hashed]


def _offset(seed: int, row: int) -> np.uint64:
    return np.uint64((seed + row + 1) * GOLDEN % 2**64)
