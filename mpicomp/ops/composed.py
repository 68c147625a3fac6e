"""Operations on the CPU that are some compiled ones, one after the other; on a device, launches queued together."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np

from ._cpu import (
    bin_select,
    clear,
    common,
    count_nonfinite,
    gather,
    moments,
    sample,
    scale,
    scatter,
    threshold,
    top_k,
)
from .reference import concatenate, empty
from .reference.many import (
    Bounds,
    Samples,
    bin_select_in,
    moments_in,
    require_counts,
    sample_in,
    threshold_in,
    unpack_sparse_in,
)
from .reference.search import Found, exponential_in, normal_in, sampled_in


def bin_select_spans(memory: np.ndarray | None, grad: np.ndarray, spans: Bounds, length: int,
                     zeros: bool = True) -> np.ndarray:
    """``bin_select`` in each of ``spans``, as indices into the whole vector; without ``zeros`` none where u is zero."""
    found = bin_select_in(bin_select, concatenate, memory, grad, spans, length)
    if zeros:
        return found
    values = np.empty(found.size, grad.dtype)
    gather(memory, grad, found, values)
    return found[threshold(None, values, float(np.finfo(grad.dtype).smallest_subnormal))]


def kth_largest_spans(x: np.ndarray, spans: Bounds, counts: list[int]) -> list[float]:
    """The smallest magnitude that ``top_k`` selects in each of ``spans``."""
    require_counts(spans, counts, x.size, least=1)
    largest = [x[start:stop][top_k(None, x[start:stop], k)] for (start, stop), k in zip(spans, counts, strict=True)]
    return [float(np.fmin.reduce(np.abs(one))) for one in largest]  # NaN only where nothing else is


def normal_spans(memory: np.ndarray | None, grad: np.ndarray, spans: Bounds, targets: list[int]) -> Found:
    """Gaussian-k's threshold in each of ``spans``."""
    return normal_in(_FOR_SEARCHES, memory, grad, spans, targets)


def exponential_spans(memory: np.ndarray | None, grad: np.ndarray, spans: Bounds, targets: list[int]) -> Found:
    """SIDCo's threshold in each of ``spans``."""
    return exponential_in(_FOR_SEARCHES, memory, grad, spans, targets)


def sampled_spans(memory: np.ndarray | None, grad: np.ndarray, spans: Bounds, samples: Samples,
                  counts: list[int]) -> Found:
    """DGC's threshold in each of ``spans``, from samples."""
    return sampled_in(_FOR_SEARCHES, memory, grad, spans, samples, counts)


def gather_counted(memory: np.ndarray | None, grad: np.ndarray, indices: np.ndarray, values: np.ndarray) -> int:
    """``gather``, and how many of the values are not finite."""
    gather(memory, grad, indices, values)
    return count_nonfinite(values)[0]


def places_in(whole: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Where in ``whole`` the entries of ``part`` stand, all of which it has."""
    return common(part, whole)[1]


def take_out(dst: np.ndarray, indices: np.ndarray, factor: float, values: np.ndarray) -> None:
    """``values[j] = dst[indices[j]] * factor``; then ``dst`` is zero there."""
    gather(None, dst, indices, values)
    clear(dst, indices)
    scale(values, factor)


def unpack_sparse(indices: np.ndarray, values: np.ndarray, arrays: list[np.ndarray]) -> None:
    """``unpack`` of a vector that has ``values`` at ``indices``, and is zero elsewhere."""
    unpack_sparse_in(scatter, indices, values, arrays)


_FOR_SEARCHES = SimpleNamespace(
    concatenate=concatenate, empty=empty, gather=gather, kth_largest_spans=kth_largest_spans,
    moments_spans=partial(moments_in, moments), sample_spans=partial(sample_in, sample),
    threshold_spans=partial(threshold_in, threshold, concatenate),
)  # fmt: skip
