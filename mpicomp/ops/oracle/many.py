"""What is done to many tensors at once, in one launch on a device: selections that begin anew in each, and copies."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from ..arguments import (
    Array,
    Bounds,
    Key,
    Moments,
    Samples,
    Spans,
    checked_streams,
    chunk_counts,
    require_counts,
    require_floor,
    require_in_range,
    require_lams,
    require_memory,
    require_samples,
    require_spans,
    require_total,
)
from .base import compensated, magnitude_bits, threshold, to_indices, top_k
from .random import random_strata
from .selection import bin_select, moments


def chunk_max_spans(memory: Array | None, grad: Array, spans: Spans, positions: Array) -> None:
    """As ``chunk_max`` in each of ``spans``, all positions one after the other; uint16 where any chunk is above 256."""
    require_memory(memory, grad)
    _require_one_a_chunk(positions, spans, len(grad))
    keys = magnitude_bits(compensated(memory, grad))
    positions[:] = [np.argmax(keys[at : min(at + chunk, stop)])
                    for start, stop, chunk in spans for at in range(start, stop, chunk)]


def chunk_indices_spans(positions: Array, spans: Spans, n: int, indices: Array) -> None:
    """Indices into all ``n`` elements of ``positions`` in the chunks of ``spans``."""
    _require_one_a_chunk(positions, spans, n)
    if len(indices) != len(positions):
        raise InvalidArgument(f"indices must have {len(positions)} elements, got {len(indices)}")
    found: list[int] = []
    for start, stop, chunk in spans:
        for at in range(start, stop, chunk):
            found.append(at + int(positions[len(found)]))
            if found[-1] >= min(at + chunk, stop):
                raise InvalidArgument(
                    f"positions must lie inside their chunks of {chunk} elements and below n = {stop}"
                )
    indices[:] = found


def _require_one_a_chunk(positions: Array, spans: Spans, n: int) -> None:
    total = sum(chunk_counts(spans, n))
    if total != len(positions):
        raise InvalidArgument(f"positions must have {total} elements, got {len(positions)}")


def top_k_spans(memory: Array | None, grad: Array, spans: Bounds, counts: list[int]) -> Array:
    """``top_k`` of ``counts`` elements in each of ``spans`` (start, stop), as indices into all of ``grad``."""
    require_counts(spans, counts, len(grad))
    require_memory(memory, grad)
    u = compensated(memory, grad)
    found = [top_k(None, u[start:stop], k) for (start, stop), k in zip(spans, counts, strict=True)]
    return in_whole(found, spans, len(grad))


def threshold_spans(memory: Array | None, grad: Array, spans: Bounds, lams: list[float]) -> tuple[Array, list[int]]:
    """``threshold`` by its own of ``lams`` in each of ``spans``, as indices into all; and how many each has."""
    require_lams(spans, lams, len(grad))
    require_memory(memory, grad)
    u = compensated(memory, grad)
    found = [threshold(None, u[start:stop], lam) for (start, stop), lam in zip(spans, lams, strict=True)]
    return in_whole(found, spans, len(grad)), [len(part) for part in found]


def bin_select_spans(memory: Array | None, grad: Array, spans: Bounds, length: int, zeros: bool = True) -> Array:
    """``bin_select`` in each of ``spans``, as indices into all of ``grad``; without ``zeros`` none where u is zero."""
    require_spans(spans, len(grad))
    require_memory(memory, grad)
    found = [bin_select(None if memory is None else memory[start:stop], grad[start:stop], length)
             for start, stop in spans]
    indices = in_whole(found, spans, len(grad))
    return indices if zeros else indices[compensated(memory, grad)[indices] != 0]


def moments_spans(memory: Array | None, grad: Array, spans: Bounds, floor: float) -> list[Moments]:
    """``moments`` in each of ``spans``."""
    require_floor(floor)
    require_memory(memory, grad)
    require_spans(spans, len(grad))
    u = compensated(memory, grad)
    return [moments(None, u[start:stop], floor) for start, stop in spans]


def sample_spans(memory: Array | None, grad: Array, samples: Samples, values: Array) -> None:
    """``sample`` from each of ``samples`` (first, stride, count), one behind another."""
    require_samples(samples, len(grad), len(values))
    require_memory(memory, grad)
    u = compensated(memory, grad)
    values[:] = [u[first + j * stride] for first, stride, count in samples for j in range(count)]


def kth_largest_spans(x: Array, spans: Bounds, counts: list[int]) -> list[float]:
    """The magnitude of the ``counts``-th largest, at least the first, in each of ``spans``; NaN counts as largest."""
    require_counts(spans, counts, len(x), least=1)
    return [float(np.sort(np.abs(x[start:stop]))[-k]) for (start, stop), k in zip(spans, counts, strict=True)]


def sorted_magnitudes(x: Array, spans: Bounds) -> list[np.ndarray]:
    """The bits of all magnitudes in each of ``spans``, ascending: integers in host memory, NaN all alike."""
    keys = magnitude_bits(x)
    return [np.sort(keys[start:stop]) for start, stop in spans]


def random_strata_spans(n: int, spans: Bounds, counts: list[int], key: Key) -> Array:
    """``random_strata`` of ``counts`` indices in each of ``spans``, as indices into ``n`` elements.

    Span s draws from the key's worker + s.
    """
    require_counts(spans, counts, n)
    seed, step, worker = checked_streams(key, len(spans))
    found = [random_strata(stop - start, k, Key(seed, step, worker + s))
             for s, ((start, stop), k) in enumerate(zip(spans, counts, strict=True))]
    return in_whole(found, spans, n)


def in_whole(found: list[Array], spans: Bounds, n: int) -> Array:
    """Indices found in each of ``spans``, as one list of indices into all ``n`` elements."""
    moved = [start + part.astype(np.int64) for part, (start, _) in zip(found, spans, strict=True)]
    return to_indices(np.concatenate([np.empty(0, np.int64), *moved]), n)


# ---- copies

def pack(arrays: list[Array], flat: Array) -> None:
    """``flat`` = the elements of all ``arrays``, of any shapes, one after the other, in ``flat``'s dtype."""
    require_total(arrays, flat)
    flat[:] = np.concatenate([flat[:0], *(array.astype(flat.dtype).ravel() for array in arrays)])


def unpack(flat: Array, arrays: list[Array]) -> None:
    """The other way: every array gets its elements, in its own dtype."""
    require_total(arrays, flat)
    for array, part in zip(arrays, split(flat, [array.size for array in arrays]), strict=True):
        array[...] = part.reshape(array.shape)


def unpack_sparse(indices: Array, values: Array, arrays: list[Array]) -> None:
    """``unpack`` of a vector that has ``values`` at ``indices``, which ascend, and is zero elsewhere."""
    flat = np.zeros(sum(array.size for array in arrays), values.dtype)
    require_in_range(indices, len(flat))
    flat[indices] = values
    unpack(flat, arrays)


def split(x: Array, sizes: list[int]) -> list[Array]:
    """Views of the parts of ``x``, of these sizes, one behind another."""
    return np.split(x, np.cumsum(sizes, dtype=np.int64))[:-1]
