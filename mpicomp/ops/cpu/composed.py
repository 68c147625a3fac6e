"""Operations on the CPU that are made of compiled ones: their arrays, or some one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import numpy as np

from .. import _cpu
from .._cpu import (
    bin_select_in_span,
    common,
    count_beyond,
    gather,
    pack_alike,
    scatter,
    sums_of,
    top_k_in_spans,
    union_of,
    unpack_alike,
    unpack_sparse_alike,
)
from ..arguments import Bounds, Found, Samples, require_counts, require_total
from ..array_lists import total_size
from ..host import index_dtype
from ..protocol import Ops
from ..search import exponential_in, normal_in, sampled_in
from ..spans import bin_select_in, restrict_in
from .each_span import moments, sample, threshold
from .kept_arrays import concatenate, empty


def bin_select(memory: np.ndarray | None, grad: np.ndarray, spans: Bounds, length: int,
               zeros: bool = True) -> np.ndarray:
    found = bin_select_in(bin_select_in_span, concatenate, memory, grad, spans, length)
    if zeros:
        return found
    values = np.empty(found.size, grad.dtype)
    gather(memory, grad, found, values)
    least = float(np.finfo(grad.dtype).smallest_subnormal)
    return found[threshold(None, values, [(0, values.size)], [least])[0]]


def kth_largest(x: np.ndarray, spans: Bounds, counts: list[int]) -> list[float]:
    require_counts(spans, counts, x.size, least=1)
    largest = np.abs(x[top_k_in_spans(None, x, spans, counts)])
    parts = np.split(largest, np.cumsum(counts)[:-1]) if counts else []
    return [float(np.fmin.reduce(one)) for one in parts]  # NaN only where nothing else is


def select_normal(memory: np.ndarray | None, grad: np.ndarray, spans: Bounds, targets: list[int]) -> Found:
    return normal_in(_FOR_SEARCHES, memory, grad, spans, targets)


def select_exponential(memory: np.ndarray | None, grad: np.ndarray, spans: Bounds, targets: list[int]) -> Found:
    return exponential_in(_FOR_SEARCHES, memory, grad, spans, targets)


def select_sampled(memory: np.ndarray | None, grad: np.ndarray, spans: Bounds, samples: Samples,
                   counts: list[int]) -> Found:
    return sampled_in(_FOR_SEARCHES, memory, grad, spans, samples, counts)


def gather_counted(memory: np.ndarray | None, grad: np.ndarray, indices: np.ndarray, values: np.ndarray,
                   limit: float = np.inf) -> int:
    gather(memory, grad, indices, values)
    return count_beyond(None, values, limit)


def union(lists: list[np.ndarray], n: int) -> np.ndarray:
    out = empty(sum(map(len, lists)), index_dtype(n))
    return out[: union_of(lists, n, out)]


def add_lists(lists: list[np.ndarray], values: list[np.ndarray], n: int,
              filled: bool = False) -> tuple[np.ndarray, np.ndarray]:
    room = sum(map(len, lists))
    out, sums = empty(room, index_dtype(n)), empty(room, values[0].dtype)
    total = sums_of(lists, values, n, filled, out, sums)
    return out[:total], sums[:total]


def restrict(lists: list[np.ndarray], values: list[np.ndarray], whole: np.ndarray,
             nonzero: list[bool]) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    return restrict_in(common, lists, values, whole, nonzero)


def unpack_gaps(packed: np.ndarray, width: int, n: int, indices: np.ndarray, wait: bool = True) -> None:
    """The inverse of ``pack_gaps``; always checked."""
    _cpu.unpack_gaps_into(packed, width, n, indices)


def unpack_bitmap(bitmap: np.ndarray, n: int, indices: np.ndarray, wait: bool = True) -> None:
    """The inverse of ``pack_bitmap``; always checked."""
    _cpu.unpack_bitmap_into(bitmap, n, indices)


def pack(arrays: list[np.ndarray], flat: np.ndarray) -> None:
    if pack_alike(arrays, flat):
        return
    for array, part in _parts(arrays, flat):
        part[:] = array.reshape(-1)


def unpack(flat: np.ndarray, arrays: list[np.ndarray]) -> None:
    if unpack_alike(flat, arrays):
        return
    for array, part in _parts(arrays, flat):
        array[...] = part.reshape(array.shape)


def unpack_sparse(indices: np.ndarray, values: np.ndarray, arrays: list[np.ndarray]) -> None:
    if unpack_sparse_alike(indices, values, arrays):
        return
    flat = np.zeros(total_size(arrays), values.dtype)
    scatter(flat, indices, values)
    unpack(flat, arrays)


def _parts(arrays: list[np.ndarray], flat: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each array with its part of the vector."""
    require_total(total_size(arrays), flat)
    at = 0
    for array in arrays:
        yield array, flat[at : at + array.size]
        at += array.size


_FOR_SEARCHES = cast(Ops, SimpleNamespace(
    concatenate=concatenate, empty=empty, gather=gather, kth_largest=kth_largest, moments=moments, sample=sample,
    threshold=threshold,
))  # fmt: skip
