"""Launchers of what selectors measure and choose, and of dense updates; see :mod:`..oracle.selection`."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ...errors import InvalidArgument
from ..arguments import Moments, dtype_name, require_floor, require_samples, require_spans
from ..host import index_dtype
from . import base
from .arguments import bits_dtype, check, kind_of, memory_or_null, remember
from .collect import table_of
from .cuda_runtime import (
    INDEX,
    MAX_BLOCKS,
    MOMENTS_PIECE,
    REAL,
    WARP,
    Array,
    blocks_for,
    launch,
    on_device,
    packs,
    to_host,
    xp,
)


@on_device
def moments(memory: Array | None, grad: Array, spans: list[tuple[int, int]], floor: float) -> list[Moments]:
    t, m = kind_of(grad, "grad", REAL), memory_or_null(memory, grad)
    require_floor(floor)
    require_spans(spans, grad.size)
    pieces, table = table_of(spans, MOMENTS_PIECE)
    count, bits = np.int64(len(spans)), np.abs(grad.dtype.type(floor)).view(bits_dtype(grad))
    sums = base.empty(4 * pieces, np.float64)
    launch("moments", f"moments<{t}>", min(MAX_BLOCKS, pieces), m, grad, table, count, bits, sums)
    until = np.cumsum([0, *(-(-(stop - start) // MOMENTS_PIECE) for start, stop in spans)])
    of_pieces = to_host(sums).reshape(4, pieces)  # few: added here, as many as a span has
    totals = [of_pieces[:, first:last].sum(axis=1).tolist() for first, last in pairwise(until)]
    return [(int(number), *rest) for number, *rest in totals]


@on_device
def sample(memory: Array | None, grad: Array, samples: list[tuple[int, int, int]], values: Array) -> None:
    t, m = kind_of(grad, "grad", REAL), memory_or_null(memory, grad)
    check(values, "values", grad.dtype)
    require_samples(samples, grad.size, values.size)
    if values.size:  # where samples begin changes from step to step: no use in keeping the table
        first, stride, count = np.array(samples, np.int64).reshape(-1, 3).T
        table = base.from_host(np.concatenate([[0], np.cumsum(count), first, stride]))
        launch("moments", f"sample<{t}>", blocks_for(values.size), m, grad, table, np.int64(len(samples)), values)


@on_device
def bin_select(memory: Array | None, grad: Array, spans: list[tuple[int, int]], length: int,
                     zeros: bool = True) -> Array:
    t, m, n = kind_of(grad, "grad", REAL), memory_or_null(memory, grad), grad.size
    if length < 1:
        raise InvalidArgument(f"length must be at least 1, got {length}")
    require_spans(spans, n)
    dtype, length = index_dtype(n), min(length, max(1, n))
    bins, table = table_of(spans, length)
    if bins == 0:
        return remember(base.empty(0, dtype), 0)
    # One warp a bin, whose place in the result follows from the counts of the bins before it.
    scalars = table, np.int64(len(spans)), np.int64(length), np.int32(zeros)
    peaks, counts = base.empty(bins, bits_dtype(grad)), base.empty(bins, np.int64)
    launch("bin_select", f"bin_peaks<{t}>", blocks_for(bins * WARP), m, grad, *scalars, peaks, counts)
    until = xp().cumsum(counts)
    indices = base.empty(int(until[-1]), dtype)
    name = f"write_bins<{t}, {INDEX[dtype_name(dtype)]}>"
    launch("bin_select", name, blocks_for(bins * WARP), m, grad, *scalars, peaks, until, indices)
    return base.vouched(indices, spans, n)


@on_device
def axpby(out: Array, a: float, x: Array, b: float, y: Array) -> None:
    t, n = kind_of(x, "x", REAL), x.size
    check(y, "y", x.dtype, n)
    check(out, "out", x.dtype, n)
    a, b = x.dtype.type(a), x.dtype.type(b)
    launch("update", f"axpby<{t}>", blocks_for(packs(x)), out, a, x, b, y, np.int64(n))


@on_device
def divide_by_root(x: Array, y: Array, eps: float) -> None:
    t, n = kind_of(x, "x", REAL), x.size
    check(y, "y", x.dtype, n)
    launch("update", f"divide_by_root<{t}>", blocks_for(packs(x)), x, y, np.int64(n), x.dtype.type(eps))


@on_device
def dense_update(memory: Array, grad: Array, sent: Array, beta: float) -> None:
    t, n = kind_of(grad, "grad", REAL), grad.size
    check(memory, "memory", grad.dtype, n)
    check(sent, "sent", grad.dtype, n)
    beta = grad.dtype.type(beta)
    launch("update", f"dense_update<{t}>", blocks_for(packs(grad)), memory, grad, sent, np.int64(n), beta)
