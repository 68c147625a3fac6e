"""Selections and measures that begin anew in each span, and copies of many arrays."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from ..arguments import (
    Array,
    Bounds,
    Moments,
    Samples,
    Spans,
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
from ..array_lists import total_size
from .base import compensated, magnitude_bits, to_indices


def chunk_max(memory: Array | None, grad: Array, spans: Spans, positions: Array) -> None:
    """Position inside each chunk of its largest ``|u|``: uint8 if no chunk is above 256 elements, else uint16."""
    require_memory(memory, grad)
    _require_one_a_chunk(positions, spans, len(grad))
    keys = magnitude_bits(compensated(memory, grad))
    positions[:] = [np.argmax(keys[at : min(at + chunk, stop)])
                    for start, stop, chunk in spans for at in range(start, stop, chunk)]


def chunk_indices(positions: Array, spans: Spans, n: int, indices: Array, known: bool = False) -> None:
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


def top_k(memory: Array | None, grad: Array, spans: Bounds, counts: list[int]) -> Array:
    """Ascending indices of the ``counts`` largest ``|u|`` of each span; the lowest index wins among equals."""
    require_counts(spans, counts, len(grad))
    require_memory(memory, grad)
    u = compensated(memory, grad)
    found = [_largest(u[start:stop], k) for (start, stop), k in zip(spans, counts, strict=True)]
    return in_whole(found, spans, len(grad))


def _largest(u: Array, k: int) -> Array:
    return np.sort(np.argsort(~magnitude_bits(u), kind="stable")[:k])


def threshold(memory: Array | None, grad: Array, spans: Bounds, lams: list[float]) -> tuple[Array, list[int]]:
    """Ascending indices of ``|u| >= lam`` in each span, NaN included, and their number per span."""
    require_lams(spans, lams, len(grad))
    require_memory(memory, grad)
    u = compensated(memory, grad)
    found = [reaching(u[start:stop], lam) for (start, stop), lam in zip(spans, lams, strict=True)]
    return in_whole(found, spans, len(grad)), [len(part) for part in found]


def reaching(u: Array, lam: float) -> Array:
    """Indices of magnitudes of at least ``lam``."""
    return np.flatnonzero(magnitude_bits(u) >= magnitude_bits(np.array([lam], u.dtype)))


def bin_select(memory: Array | None, grad: Array, spans: Bounds, length: int, zeros: bool = True) -> Array:
    """Indices of ``|u + grad| >= max |u|`` of their bin of ``length`` elements; NaN counts as largest.

    Bins begin anew in each span. Without ``zeros`` none where u is zero.
    """
    if length < 1:
        raise InvalidArgument(f"length must be at least 1, got {length}")
    require_spans(spans, len(grad))
    require_memory(memory, grad)
    u = compensated(memory, grad)
    ahead, peaks = magnitude_bits(u + grad), magnitude_bits(u)
    bins = [(at, min(at + length, stop)) for start, stop in spans for at in range(start, stop, length)]
    found = [np.flatnonzero(ahead[begin:end] >= peaks[begin:end].max()) for begin, end in bins]
    indices = in_whole(found, bins, len(grad))
    return indices if zeros else indices[u[indices] != 0]


def moments(memory: Array | None, grad: Array, spans: Bounds, floor: float) -> list[Moments]:
    """Per span, the number of ``|u| >= floor`` and their sums of u, of ``|u|`` and of u squared, in float64.

    With ``floor = 0`` a NaN or infinity anywhere in a span makes its sums not finite.
    """
    require_floor(floor)
    require_memory(memory, grad)
    require_spans(spans, len(grad))
    u = compensated(memory, grad)
    return [moments_of(u[start:stop], floor) for start, stop in spans]


def moments_of(u: Array, floor: float) -> Moments:
    u = u[reaching(u, floor)].astype(np.float64)
    return len(u), float(u.sum()), float(np.abs(u).sum()), float(np.square(u).sum())


def sample(memory: Array | None, grad: Array, samples: Samples, values: Array) -> None:
    """u at every ``stride``-th element from ``first`` on of each of ``samples`` (first, stride, count)."""
    require_samples(samples, len(grad), len(values))
    require_memory(memory, grad)
    u = compensated(memory, grad)
    values[:] = [u[first + j * stride] for first, stride, count in samples for j in range(count)]


def kth_largest(x: Array, spans: Bounds, counts: list[int]) -> list[float]:
    """The magnitude of the ``counts``-th largest, at least the first, in each of ``spans``; NaN counts as largest."""
    require_counts(spans, counts, len(x), least=1)
    return [float(np.sort(np.abs(x[start:stop]))[-k]) for (start, stop), k in zip(spans, counts, strict=True)]


def sorted_magnitudes(x: Array, spans: Bounds) -> list[np.ndarray]:
    """The bits of all magnitudes in each of ``spans``, ascending: integers in host memory, NaN all alike."""
    keys = magnitude_bits(x)
    return [np.sort(keys[start:stop]) for start, stop in spans]


def in_whole(found: list[Array], spans: Bounds, n: int) -> Array:
    """Indices found in each of ``spans``, as one list of indices into all ``n`` elements."""
    moved = [start + part.astype(np.int64) for part, (start, _) in zip(found, spans, strict=True)]
    return to_indices(np.concatenate([np.empty(0, np.int64), *moved]), n)


# ---- copies

def pack(arrays: list[Array], flat: Array) -> None:
    """``flat`` = the elements of all ``arrays``, of any shapes, one after the other, in ``flat``'s dtype."""
    require_total(total_size(arrays), flat)
    flat[:] = np.concatenate([flat[:0], *(array.astype(flat.dtype).ravel() for array in arrays)])


def unpack(flat: Array, arrays: list[Array]) -> None:
    """The other way: every array gets its elements, in its own dtype."""
    require_total(total_size(arrays), flat)
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
