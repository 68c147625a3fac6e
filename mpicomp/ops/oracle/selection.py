"""What selectors measure and choose beside the exact selections of :mod:`.base`."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from ..arguments import Array, Moments, require_floor
from .base import compensated, magnitude_bits, to_indices


def moments(memory: Array | None, grad: Array, floor: float) -> Moments:
    """Of the entries with ``|u| >= floor``: how many, sum of u, of ``|u|`` and of u squared, in float64.

    With ``floor = 0`` a NaN or infinity anywhere makes the sums not finite.
    """
    require_floor(floor)
    u = compensated(memory, grad)
    u = u[magnitude_bits(u) >= magnitude_bits(np.array([floor], grad.dtype))].astype(np.float64)
    return len(u), float(u.sum()), float(np.abs(u).sum()), float(np.square(u).sum())


def sample(memory: Array | None, grad: Array, first: int, stride: int, values: Array) -> None:
    """``values[j] = u[first + j * stride]``."""
    last = first + (len(values) - 1) * stride
    if stride < 1 or first < 0 or (len(values) and last >= len(grad)):
        got = f"{len(values)} elements from {first} in steps of {stride}"
        raise InvalidArgument(f"a sample must lie in [0, {len(grad)}), got {got}")
    values[:] = compensated(memory, grad)[first : last + 1 : stride] if len(values) else 0


def bin_select(memory: Array | None, grad: Array, length: int) -> Array:
    """Ascending indices of ``|u + grad| >= max |u|`` of its bin of ``length`` elements; NaN counts as largest."""
    if length < 1:
        raise InvalidArgument(f"length must be at least 1, got {length}")
    u = compensated(memory, grad)
    ahead, peaks = magnitude_bits(u + grad), magnitude_bits(u)
    chosen = [
        at + np.flatnonzero(ahead[at : at + length] >= peaks[at : at + length].max())
        for at in range(0, len(grad), length)
    ]
    return to_indices(np.concatenate(chosen) if chosen else np.empty(0), len(grad))


def axpby(out: Array, a: float, x: Array, b: float, y: Array) -> None:
    """``out = a * x + b * y`` in the array's precision; ``out`` may be ``x`` or ``y``."""
    t = x.dtype.type
    out[:] = t(a) * x + t(b) * y


def dense_update(memory: Array, grad: Array, sent: Array, beta: float) -> None:
    """``memory = (1 - beta) * memory + beta * ((memory + grad) - sent)``, everything having been sent."""
    beta = grad.dtype.type(beta)
    unsent = (memory + grad) - sent
    memory[:] = (grad.dtype.type(1) - beta) * memory + beta * unsent
