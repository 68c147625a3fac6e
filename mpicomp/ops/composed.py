"""Operations on the CPU that are some compiled ones, one after the other; on a device each is one launch."""

from __future__ import annotations

import numpy as np

from ._cpu import bin_select, clear, common, count_nonfinite, gather, scale, scatter, threshold
from .reference import concatenate
from .reference.many import Bounds, bin_select_in, unpack_sparse_in


def bin_select_spans(memory: np.ndarray | None, grad: np.ndarray, spans: Bounds, length: int,
                     zeros: bool = True) -> np.ndarray:
    """``bin_select`` in each of ``spans``, as indices into the whole vector; without ``zeros`` none where u is zero."""
    found = bin_select_in(bin_select, concatenate, memory, grad, spans, length)
    if zeros:
        return found
    values = np.empty(found.size, grad.dtype)
    gather(memory, grad, found, values)
    return found[threshold(None, values, float(np.finfo(grad.dtype).smallest_subnormal))]


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
