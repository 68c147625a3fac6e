"""Apply a module's operation on one span, matrix or list to many: for the CPU, for products on GPUs, and for ghosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from ..errors import InvalidArgument
from .arguments import (
    Array,
    Bounds,
    Key,
    Matrices,
    Moments,
    Samples,
    Spans,
    checked_streams,
    chunk_counts,
    position_dtype,
    require_counts,
    require_floor,
    require_lams,
    require_memory,
    require_packed,
    require_projection,
    require_samples,
    require_spans,
    rows_until,
)
from .host import index_dtype

Indices = TypeVar("Indices")  # an array, or in simulations one without elements
Makes = Callable[..., Indices]

# ---- selections and measures, span by span

def chunk_max_in(one: Callable[..., None], memory: Array | None, grad: Array, spans: Spans, positions: Array) -> None:
    require_memory(memory, grad)
    for start, stop, chunk, part in _parts(spans, grad.size, positions):
        own = part if _fits(chunk, positions) else np.empty(part.size, np.uint8)
        one(None if memory is None else memory[start:stop], grad[start:stop], chunk, own)
        if own is not part:
            part[:] = own


def chunk_indices_in(one: Callable[..., None], positions: Array, spans: Spans, n: int, indices: Array) -> None:
    parts = list(_parts(spans, n, positions))
    if indices.size != positions.size:
        raise InvalidArgument(f"indices must have {positions.size} elements, got {indices.size}")
    at = 0
    for start, stop, chunk, part in parts:
        if not _fits(chunk, positions):
            if np.any(part >= chunk):  # which the narrower type may hide from ``one``
                raise InvalidArgument(f"positions must lie inside their chunks of {chunk} elements and below n = "
                                      f"{stop}")
            part = part.astype(np.uint8)
        target = indices[at : at + part.size]
        one(part, chunk, stop - start, target)
        if start:
            target += start
        at += part.size


def top_k_in(one: Makes[Indices], join: Makes[Indices], memory: Array | None, grad: Array,
             spans: Bounds, counts: list[int]) -> Indices:
    require_counts(spans, counts, grad.size)
    return _joined(_selected(one, memory, grad, spans, counts), join, grad.size)


def threshold_in(one: Makes[Indices], join: Makes[Indices], memory: Array | None, grad: Array,
                 spans: Bounds, lams: list[float]) -> tuple[Indices, list[int]]:
    require_lams(spans, lams, grad.size)
    found = _selected(one, memory, grad, spans, lams)
    return _joined(found, join, grad.size), [part.size for part in found]


def bin_select_in(one: Makes[Indices], join: Makes[Indices], memory: Array | None, grad: Array,
                  spans: Bounds, length: int) -> Indices:
    require_spans(spans, grad.size)
    return _joined(_selected(one, memory, grad, spans, [length] * len(spans)), join, grad.size)


def moments_in(one: Callable[..., Moments], memory: Array | None, grad: Array, spans: Bounds, floor: float
               ) -> list[Moments]:
    require_floor(floor)
    require_memory(memory, grad)
    require_spans(spans, grad.size)
    return [one(None if memory is None else memory[start:stop], grad[start:stop], floor) for start, stop in spans]


def sample_in(one: Callable[..., None], memory: Array | None, grad: Array, samples: Samples, values: Array) -> None:
    require_samples(samples, grad.size, values.size)
    at = 0
    for first, stride, count in samples:
        one(memory, grad, first, stride, values[at : at + count])
        at += count


def random_strata_in(one: Makes[Indices], join: Makes[Indices], n: int, spans: Bounds, counts: list[int],
                     key: Key) -> Indices:
    require_counts(spans, counts, n)
    key = checked_streams(key, len(spans))
    found = [one(stop - start, k, key._replace(worker=key.worker + number))
             for number, ((start, stop), k) in enumerate(zip(spans, counts, strict=True))]
    return _joined([_moved(part, start, n) for part, (start, _) in zip(found, spans, strict=True)], join, n)


def project_rows_in(one: Callable[..., None], memory: Array | None, grad: Array, spans: Bounds, row: int, width: int,
                    seed: int, out: Array) -> None:
    require_projection(row, width)
    require_memory(memory, grad)
    require_spans(spans, grad.size)
    until = rows_until(spans, row)
    if out.size != until[-1] * width:
        raise InvalidArgument(f"out must have {until[-1] * width} elements, got {out.size}")
    for (start, stop), (first, last) in zip(spans, pairwise(until), strict=True):
        part = out[first * width : last * width]
        one(None if memory is None else memory[start:stop], grad[start:stop], row, width, seed, part)


def expand_rows_in(one: Makes[Indices], join: Makes[Indices], positions_of: Callable[[Array, list[int]], list[int]],
                   rows: Array, row: int, spans: Bounds, n: int) -> Indices:
    until = rows_until(spans, row)
    found = [_moved(one(rows[begin:end] - first if first else rows[begin:end], row, stop - start), start, n)
             for (start, stop), first, (begin, end) in zip(spans, until[:-1], pairwise(positions_of(rows, until)),
                                                           strict=True)]  # fmt: skip
    return _joined(found, join, n)


# ---- matrices in one vector, their p and their q packed one behind another

def project_each(one: Callable[..., None], memory: Array | None, grad: Array, matrices: Matrices, q: Array,
                 p: Array) -> None:
    require_memory(memory, grad)
    require_packed(matrices, grad.size, p=p, q=q)
    for own, rows, of_p, of_q in _places(matrices):
        one(None if memory is None else memory[own], grad[own], rows, q[of_q], p[of_p])


def project_back_each(one: Callable[..., None], memory: Array | None, grad: Array, matrices: Matrices, p: Array,
                      q: Array) -> None:
    require_memory(memory, grad)
    require_packed(matrices, grad.size, p=p, q=q)
    for own, rows, of_p, of_q in _places(matrices):
        one(None if memory is None else memory[own], grad[own], rows, p[of_p], q[of_q])


def low_rank_product_each(one: Callable[..., None], p: Array, q: Array, matrices: Matrices, out: Array) -> None:
    require_packed(matrices, out.size, p=p, q=q)
    for own, rows, of_p, of_q in _places(matrices):
        one(p[of_p], q[of_q], rows, out[own])


def orthogonalise_each(one: Callable[..., None], p: Array, matrices: Matrices) -> None:
    require_packed(matrices, max((stop for _, stop, *_ in matrices), default=0), p=p)
    for _, rows, of_p, _ in _places(matrices):
        one(p[of_p], rows)


# ---- list by list

def restrict_in(find: Callable[[Array, Array], tuple[Array, Array]], lists: list[Array], values: list[Array],
                whole: Array, nonzero: list[bool]) -> tuple[tuple[Array, Array], ...]:
    """``restrict`` by a module's own ``common``."""
    kept = []
    for one, of, without_zeros in zip(lists, values, nonzero, strict=True):
        places = find(one, whole)[0]
        if without_zeros:
            places = places[of[places] != 0]
        kept.append((one[places], of[places]))
    return tuple(kept)


# ---- helpers

def _selected(one: Makes[Any], memory: Array | None, grad: Array, spans: Bounds, arguments: Iterable[float]
              ) -> list[Any]:
    """Selection of ``one`` in each span with its argument, as indices into all of ``grad``."""
    require_memory(memory, grad)
    return [_moved(one(None if memory is None else memory[start:stop], grad[start:stop], argument), start, grad.size)
            for (start, stop), argument in zip(spans, arguments, strict=True)]


def _moved(indices: Any, start: int, n: int) -> Any:
    indices = indices.astype(index_dtype(n), copy=False)
    return indices + start if start else indices


def _joined(found: list[Indices], join: Makes[Indices], n: int) -> Indices:
    return found[0] if len(found) == 1 else join(found, index_dtype(n))


def _parts(spans: Spans, n: int, positions: Array) -> Iterator[tuple[int, int, int, Array]]:
    """Each span with its part of ``positions``, one per chunk, in the type that the largest chunk needs."""
    counts = chunk_counts(spans, n)
    dtype = position_dtype(spans)
    if positions.dtype != dtype:
        raise InvalidArgument(f"positions must be of dtype {dtype}, got {positions.dtype}")
    if sum(counts) != positions.size:
        raise InvalidArgument(f"positions must have {sum(counts)} elements, got {positions.size}")
    at = 0
    for (start, stop, chunk), chunks in zip(spans, counts, strict=True):
        yield start, stop, chunk, positions[at : at + chunks]
        at += chunks


def _fits(chunk: int, positions: Array) -> bool:
    """Return True if positions in such a chunk have this type: if spans' chunks differ, the widest decides."""
    return positions.itemsize == (1 if chunk <= 256 else 2)


def _places(matrices: Matrices) -> Iterator[tuple[slice, int, slice, slice]]:
    """Each matrix's part of the vector, its rows, and its parts of the packed p and q."""
    p = q = 0
    for start, stop, rows, rank in matrices:
        p_stop, q_stop = p + rows * rank, q + (stop - start) // rows * rank
        yield slice(start, stop), rows, slice(p, p_stop), slice(q, q_stop)
        p, q = p_stop, q_stop
