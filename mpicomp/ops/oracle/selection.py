"""Linear combinations, Adam's division, and dense updates."""

from __future__ import annotations

import numpy as np

from ..arguments import Array


def axpby(out: Array, a: float, x: Array, b: float, y: Array) -> None:
    """``out = a * x + b * y`` in the array's precision; ``out`` may be ``x`` or ``y``."""
    t = x.dtype.type
    out[:] = t(a) * x + t(b) * y


def divide_by_root(x: Array, y: Array, eps: float) -> None:
    """``x /= sqrt(y) + eps`` in the array's precision."""
    x /= np.sqrt(y) + x.dtype.type(eps)


def dense_update(memory: Array, grad: Array, sent: Array, beta: float) -> None:
    """``memory = (1 - beta) * memory + beta * ((memory + grad) - sent)``, everything having been sent."""
    beta = grad.dtype.type(beta)
    unsent = (memory + grad) - sent
    memory[:] = (grad.dtype.type(1) - beta) * memory + beta * unsent
