"""What is done to many tensors at once, in one launch on a device: chunks that begin anew in each, and copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...errors import InvalidArgument
from ...partition import chunk_count
from .base import Array, chunk_indices, chunk_max, concatenate, index_dtype, top_k

Spans = list[tuple[int, int, int]]  # of each tensor: start, stop, elements a chunk


def chunk_max_spans(memory: Array | None, grad: Array, spans: Spans, positions: Array) -> None:
    """As ``chunk_max`` in each of ``spans``, all positions one after the other; uint16 where any chunk is above 256."""
    chunk_max_in(chunk_max, memory, grad, spans, positions)


def chunk_indices_spans(positions: Array, spans: Spans, n: int, indices: Array) -> None:
    """Indices into all ``n`` elements of ``positions`` in the chunks of ``spans``."""
    chunk_indices_in(chunk_indices, positions, spans, indices)


def top_k_spans(memory: Array | None, grad: Array, spans: list[tuple[int, int]], counts: list[int]) -> Array:
    """``top_k`` of ``counts`` elements in each of ``spans`` (start, stop), as indices into all of ``grad``."""
    return top_k_in(top_k, concatenate, memory, grad, spans, counts)


def pack(arrays: list[Array], flat: Array) -> None:
    """``flat`` = the elements of all ``arrays``, of any shapes, one after the other, in ``flat``'s dtype."""
    require_total(arrays, flat)
    at = 0
    for array in arrays:
        flat[at : at + array.size] = array.reshape(-1)
        at += array.size


def unpack(flat: Array, arrays: list[Array]) -> None:
    """The other way: every array gets its elements, in its own dtype."""
    require_total(arrays, flat)
    at = 0
    for array in arrays:
        array[...] = flat[at : at + array.size].reshape(array.shape)
        at += array.size


def require_total(arrays: list[Array], flat: Array) -> None:
    """Refuse a vector that is not as long as all arrays together."""
    total = sum(array.size for array in arrays)
    if total != flat.size:
        raise InvalidArgument(f"flat must have {total} elements, got {flat.size}")


# ---- span by span, with any module's operation on one

def chunk_max_in(one: Callable[..., None], memory: Array | None, grad: Array, spans: Spans, positions: Array) -> None:
    for start, stop, chunk, part in _parts(spans, positions):
        own = part if _fits(chunk, positions) else np.empty(part.size, np.uint8)
        one(None if memory is None else memory[start:stop], grad[start:stop], chunk, own)
        if own is not part:
            part[:] = own


def chunk_indices_in(one: Callable[..., None], positions: Array, spans: Spans, indices: Array) -> None:
    at = 0
    for start, stop, chunk, part in _parts(spans, positions):
        if np.any(part >= chunk):  # before a narrower type may hide it
            raise InvalidArgument(f"positions must lie inside their chunks of {chunk} elements and below n = {stop}")
        target = indices[at : at + part.size]
        one(part if _fits(chunk, positions) else part.astype(np.uint8), chunk, stop - start, target)
        if start:
            target += start
        at += part.size


def top_k_in(one: Callable[..., Any], concatenate: Callable[..., Any], memory: Any, grad: Any,
             spans: list[tuple[int, int]], counts: list[int]) -> Any:
    require_counts(spans, counts, grad.size)
    found, dtype = [], index_dtype(grad.size)
    for (start, stop), k in zip(spans, counts, strict=True):
        part = one(None if memory is None else memory[start:stop], grad[start:stop], k).astype(dtype, copy=False)
        found.append(part + start if start else part)
    return found[0] if len(found) == 1 else concatenate(found, dtype)


def require_counts(spans: list[tuple[int, int]], counts: list[int], n: int) -> None:
    """Refuse spans that do not lie in a vector of ``n``, or of which more is wanted than there is."""
    if len(spans) != len(counts):
        raise InvalidArgument(f"there must be a count for each of {len(spans)} spans, got {len(counts)}")
    for (start, stop), k in zip(spans, counts, strict=True):
        if not 0 <= start <= stop <= n:
            raise InvalidArgument(f"spans must lie in [0, {n}), got {start} to {stop}")
        if not 0 <= k <= stop - start:
            raise InvalidArgument(f"k must be in [0, {stop - start}], got {k}")


def _parts(spans: Spans, positions: Array) -> Iterator[tuple[int, int, int, Array]]:
    """Each span with its part of ``positions``."""
    at = 0
    for start, stop, chunk in spans:
        chunks = chunk_count(stop - start, chunk)
        yield start, stop, chunk, positions[at : at + chunks]
        at += chunks
    if at != positions.size:
        raise InvalidArgument(f"positions must have {at} elements, got {positions.size}")


def _fits(chunk: int, positions: Array) -> bool:
    """Whether positions in such a chunk are held in this type; where spans' chunks differ, the widest is taken."""
    return positions.itemsize == (1 if chunk <= 256 else 2)
