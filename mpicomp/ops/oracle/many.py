"""What is done to many tensors at once, in one launch on a device: selections that begin anew in each, and copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ..._util.partition import chunk_count
from ...errors import InvalidArgument
from .base import (
    Array,
    chunk_indices,
    chunk_max,
    compensated,
    concatenate,
    index_dtype,
    magnitude_bits,
    require_chunk,
    require_memory,
    scatter,
    threshold,
    top_k,
)
from .random import Key, checked_key, random_strata
from .selection import Moments, bin_select, moments, require_floor, sample

Spans = list[tuple[int, int, int]]  # of each tensor: start, stop, elements a chunk
Bounds = list[tuple[int, int]]  # of each tensor: start, stop
Samples = list[tuple[int, int, int]]  # of each tensor: the first element that is read, the step to the next, how many


def chunk_max_spans(memory: Array | None, grad: Array, spans: Spans, positions: Array) -> None:
    """As ``chunk_max`` in each of ``spans``, all positions one after the other; uint16 where any chunk is above 256."""
    chunk_max_in(chunk_max, memory, grad, spans, positions)


def chunk_indices_spans(positions: Array, spans: Spans, n: int, indices: Array) -> None:
    """Indices into all ``n`` elements of ``positions`` in the chunks of ``spans``."""
    chunk_indices_in(chunk_indices, positions, spans, n, indices)


def top_k_spans(memory: Array | None, grad: Array, spans: Bounds, counts: list[int]) -> Array:
    """``top_k`` of ``counts`` elements in each of ``spans`` (start, stop), as indices into all of ``grad``."""
    return top_k_in(top_k, concatenate, memory, grad, spans, counts)


def threshold_spans(memory: Array | None, grad: Array, spans: Bounds, lams: list[float]) -> tuple[Array, list[int]]:
    """``threshold`` by its own of ``lams`` in each of ``spans``, as indices into all; and how many each has."""
    return threshold_in(threshold, concatenate, memory, grad, spans, lams)


def bin_select_spans(memory: Array | None, grad: Array, spans: Bounds, length: int, zeros: bool = True) -> Array:
    """``bin_select`` in each of ``spans``, as indices into all of ``grad``; without ``zeros`` none where u is zero."""
    found = bin_select_in(bin_select, concatenate, memory, grad, spans, length)
    return found if zeros else found[compensated(memory, grad)[found] != 0]


def moments_spans(memory: Array | None, grad: Array, spans: Bounds, floor: float) -> list[Moments]:
    """``moments`` in each of ``spans``."""
    return moments_in(moments, memory, grad, spans, floor)


def sample_spans(memory: Array | None, grad: Array, samples: Samples, values: Array) -> None:
    """``sample`` from each of ``samples`` (first, stride, count), one behind another."""
    sample_in(sample, memory, grad, samples, values)


def kth_largest_spans(x: Array, spans: Bounds, counts: list[int]) -> list[float]:
    """The magnitude of the ``counts``-th largest, at least the first, in each of ``spans``; NaN counts as largest."""
    require_counts(spans, counts, x.size, least=1)
    return [float(some[-k].view(x.dtype)) for some, k in zip(sorted_magnitudes(x, spans), counts, strict=True)]


def sorted_magnitudes(x: Array, spans: Bounds) -> list[np.ndarray]:
    """The bits of all magnitudes in each of ``spans``, ascending: integers in host memory, NaN all alike."""
    return [np.sort(magnitude_bits(x[start:stop])) for start, stop in spans]


def random_strata_spans(n: int, spans: Bounds, counts: list[int], key: Key) -> Array:
    """``random_strata`` of ``counts`` indices in each of ``spans``, as indices into ``n`` elements.

    Span s draws from the key's worker + s.
    """
    return random_strata_in(random_strata, concatenate, n, spans, counts, key)


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


def unpack_sparse(indices: Array, values: Array, arrays: list[Array]) -> None:
    """``unpack`` of a vector that has ``values`` at ``indices``, which ascend, and is zero elsewhere."""
    unpack_sparse_in(scatter, indices, values, arrays)


def require_total(arrays: list[Array], flat: Array) -> None:
    """Refuse a vector that is not as long as all arrays together."""
    total = sum(array.size for array in arrays)
    if total != flat.size:
        raise InvalidArgument(f"flat must have {total} elements, got {flat.size}")


# ---- span by span, with any module's operation on one

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
        if np.any(part >= chunk):  # before a narrower type may hide it
            raise InvalidArgument(f"positions must lie inside their chunks of {chunk} elements and below n = {stop}")
        target = indices[at : at + part.size]
        one(part if _fits(chunk, positions) else part.astype(np.uint8), chunk, stop - start, target)
        if start:
            target += start
        at += part.size


def top_k_in(one: Callable[..., Any], concatenate: Callable[..., Any], memory: Any, grad: Any, spans: Bounds,
             counts: list[int]) -> Any:
    require_counts(spans, counts, grad.size)
    return _joined(_selected(one, memory, grad, spans, counts), concatenate, grad.size)


def threshold_in(one: Callable[..., Any], concatenate: Callable[..., Any], memory: Any, grad: Any, spans: Bounds,
                 lams: list[float]) -> tuple[Any, list[int]]:
    require_lams(spans, lams, grad.size)
    found = _selected(one, memory, grad, spans, lams)
    return _joined(found, concatenate, grad.size), [part.size for part in found]


def bin_select_in(one: Callable[..., Any], concatenate: Callable[..., Any], memory: Any, grad: Any, spans: Bounds,
                  length: int) -> Any:
    require_spans(spans, grad.size)
    return _joined(_selected(one, memory, grad, spans, [length] * len(spans)), concatenate, grad.size)


def moments_in(one: Callable[..., Moments], memory: Any, grad: Any, spans: Bounds, floor: float) -> list[Moments]:
    require_floor(floor)
    require_memory(memory, grad)
    require_spans(spans, grad.size)
    return [one(None if memory is None else memory[start:stop], grad[start:stop], floor) for start, stop in spans]


def sample_in(one: Callable[..., None], memory: Any, grad: Any, samples: Samples, values: Any) -> None:
    require_samples(samples, grad.size, values.size)
    at = 0
    for first, stride, count in samples:
        one(memory, grad, first, stride, values[at : at + count])
        at += count


def random_strata_in(one: Callable[..., Any], concatenate: Callable[..., Any], n: int, spans: Bounds, counts: list[int],
                     key: Key) -> Any:
    require_counts(spans, counts, n)
    key = checked_streams(key, len(spans))
    found = [one(stop - start, k, key._replace(worker=key.worker + number))
             for number, ((start, stop), k) in enumerate(zip(spans, counts, strict=True))]
    return _joined([_moved(part, start, n) for part, (start, _) in zip(found, spans, strict=True)], concatenate, n)


def unpack_sparse_in(scatter: Callable[..., None], indices: Any, values: Any, arrays: list[Any]) -> None:
    flat = np.zeros(sum(array.size for array in arrays), values.dtype)
    scatter(flat, indices, values)
    unpack(flat, arrays)


def _selected(one: Callable[..., Any], memory: Any, grad: Any, spans: Bounds, arguments: Iterable[Any]) -> list[Any]:
    """Of each span what ``one`` selects there with its argument, as indices into all of ``grad``."""
    require_memory(memory, grad)
    return [_moved(one(None if memory is None else memory[start:stop], grad[start:stop], argument), start, grad.size)
            for (start, stop), argument in zip(spans, arguments, strict=True)]


def _moved(indices: Any, start: int, n: int) -> Any:
    indices = indices.astype(index_dtype(n), copy=False)
    return indices + start if start else indices


def _joined(found: list[Any], concatenate: Callable[..., Any], n: int) -> Any:
    return found[0] if len(found) == 1 else concatenate(found, index_dtype(n))


def require_spans(spans: Bounds, n: int) -> None:
    """Refuse spans that do not lie in a vector of ``n``."""
    for start, stop in spans:
        if not 0 <= start <= stop <= n:
            raise InvalidArgument(f"spans must lie in [0, {n}), got {start} to {stop}")


def chunk_counts(spans: Spans, n: int) -> list[int]:
    """How many chunks each span has; refuses spans that do not lie in a vector of ``n``, and chunks of no such size."""
    require_spans([span[:2] for span in spans], n)
    for *_, chunk in spans:
        require_chunk(chunk)
    return [chunk_count(stop - start, chunk) for start, stop, chunk in spans]


def require_counts(spans: Bounds, counts: list[int], n: int, least: int = 0) -> None:
    """Refuse spans that do not lie in a vector of ``n``, or of which more is wanted than there is."""
    if len(spans) != len(counts):
        raise InvalidArgument(f"there must be a count for each of {len(spans)} spans, got {len(counts)}")
    require_spans(spans, n)
    for (start, stop), k in zip(spans, counts, strict=True):
        if not least <= k <= stop - start:
            raise InvalidArgument(f"k must be in [{least}, {stop - start}], got {k}")


def require_lams(spans: Bounds, lams: list[float], n: int) -> None:
    """Refuse spans that do not lie in a vector of ``n``, and thresholds that are none."""
    if len(spans) != len(lams):
        raise InvalidArgument(f"there must be a threshold for each of {len(spans)} spans, got {len(lams)}")
    require_spans(spans, n)
    for lam in lams:
        if not lam >= 0:
            raise InvalidArgument(f"lam must be a number >= 0, got {lam}")


def require_samples(samples: Samples, n: int, room: int) -> None:
    """Refuse samples that reach outside a vector of ``n``, or do not fill ``room`` elements."""
    for first, stride, count in samples:
        if stride < 1 or min(first, count) < 0 or (count and first + (count - 1) * stride >= n):
            raise InvalidArgument(f"a sample must lie in [0, {n}), got {count} elements from {first} in steps of "
                                  f"{stride}")
    if (total := sum(count for *_, count in samples)) != room:
        raise InvalidArgument(f"values must have {total} elements, got {room}")


def checked_streams(key: Key, count: int) -> Key:
    """``key``, where ``count`` workers from its own on have numbers, or InvalidArgument."""
    key = checked_key(key)
    checked_key(key._replace(worker=key.worker + max(0, count - 1)))
    return key


def _parts(spans: Spans, n: int, positions: Array) -> Iterator[tuple[int, int, int, Array]]:
    """Each span with its part of ``positions``, of which there must be one a chunk."""
    counts = chunk_counts(spans, n)
    if sum(counts) != positions.size:
        raise InvalidArgument(f"positions must have {sum(counts)} elements, got {positions.size}")
    at = 0
    for (start, stop, chunk), chunks in zip(spans, counts, strict=True):
        yield start, stop, chunk, positions[at : at + chunks]
        at += chunks


def _fits(chunk: int, positions: Array) -> bool:
    """Whether positions in such a chunk are held in this type; where spans' chunks differ, the widest is taken."""
    return positions.itemsize == (1 if chunk <= 256 else 2)
