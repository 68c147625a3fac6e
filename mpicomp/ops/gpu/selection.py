"""Launchers of what selectors measure and choose, and of dense updates; see :mod:`..reference.selection`."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from ..cuda_runtime import INDEX, REAL, WARP, Array, blocks_for, launch, on_device, packs, to_host, xp
from ..reference import index_dtype
from . import base
from .arguments import bits_dtype, check, kind_of, memory_or_null, vouch


@on_device
def moments(memory: Array | None, grad: Array, floor: float) -> tuple[int, float, float, float]:
    t, m = kind_of(grad, "grad", REAL), memory_or_null(memory, grad)
    if not floor >= 0:
        raise InvalidArgument(f"floor must be a number >= 0, got {floor}")
    blocks, bits = blocks_for(packs(grad)), np.abs(grad.dtype.type(floor)).view(bits_dtype(grad))
    sums = base.zeros(4 * blocks, np.float64)  # four a block, added here in their order
    launch("moments", f"moments<{t}>", blocks, m, grad, np.int64(grad.size), bits, sums)
    count, *rest = to_host(sums).reshape(blocks, 4).sum(axis=0).tolist()
    return int(count), *rest


@on_device
def sample(memory: Array | None, grad: Array, first: int, stride: int, values: Array) -> None:
    t, m, k = kind_of(grad, "grad", REAL), memory_or_null(memory, grad), values.size
    check(values, "values", grad.dtype)
    if stride < 1 or first < 0 or (k and first + (k - 1) * stride >= grad.size):
        got = f"{k} elements from {first} in steps of {stride}"
        raise InvalidArgument(f"a sample must lie in [0, {grad.size}), got {got}")
    scalars = np.int64(first), np.int64(stride), np.int64(k)
    launch("moments", f"sample<{t}>", blocks_for(k), m, grad, *scalars, values)


@on_device
def bin_select(memory: Array | None, grad: Array, length: int) -> Array:
    t, m, n = kind_of(grad, "grad", REAL), memory_or_null(memory, grad), grad.size
    if length < 1:
        raise InvalidArgument(f"length must be at least 1, got {length}")
    dtype = index_dtype(n)
    if n == 0:
        return base.empty(0, dtype)
    # One warp a bin, whose place in the result follows from the counts of the bins before it.
    length = min(length, n)
    bins, scalars = -(-n // length), (np.int64(n), np.int64(length))
    peaks, counts = base.empty(bins, bits_dtype(grad)), base.empty(bins, np.int64)
    launch("bin_select", f"bin_peaks<{t}>", blocks_for(bins * WARP), m, grad, *scalars, peaks, counts)
    until = xp().cumsum(counts)
    indices = base.empty(int(until[-1]), dtype)
    name = f"write_bins<{t}, {INDEX[dtype.name]}>"
    launch("bin_select", name, blocks_for(bins * WARP), m, grad, *scalars, peaks, until, indices)
    return vouch(indices, n)


@on_device
def axpby(out: Array, a: float, x: Array, b: float, y: Array) -> None:
    t, n = kind_of(x, "x", REAL), x.size
    check(y, "y", x.dtype, n)
    check(out, "out", x.dtype, n)
    a, b = x.dtype.type(a), x.dtype.type(b)
    launch("update", f"axpby<{t}>", blocks_for(packs(x)), out, a, x, b, y, np.int64(n))


@on_device
def dense_update(memory: Array, grad: Array, sent: Array, beta: float) -> None:
    t, n = kind_of(grad, "grad", REAL), grad.size
    check(memory, "memory", grad.dtype, n)
    check(sent, "sent", grad.dtype, n)
    beta = grad.dtype.type(beta)
    launch("update", f"dense_update<{t}>", blocks_for(packs(grad)), memory, grad, sent, np.int64(n), beta)
