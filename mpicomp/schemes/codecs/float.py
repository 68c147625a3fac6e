"""Floating-point values, as they are or narrowed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...types import Array, Place
from ..options import Option
from ._common import require_bytes


class Float:
    """Writes each value as float16, bfloat16, float32, float64, or in the gradient's own precision (``same``).

    Narrowing rounds to nearest even; the rounding error stays in the memory, because ``decode`` of what was
    sent is what the memory subtracts. float16 overflows above 65 504: an infinite mean is caught by the reducer.
    """

    name = "float"
    options = (
        Option("values", str, "same", "precision of a value on the wire",
               choices=("same", "float16", "bfloat16", "float32", "float64")),
    )
    reference = "-"
    addable = True
    shares_scale = False

    def __init__(self, values: str) -> None:
        self.values = values
        self.kind = "bfloat16" if values == "bfloat16" else None

    def dtype(self, dtype: np.dtype) -> np.dtype:
        """The wire's dtype for values of ``dtype``; bfloat16 travels as the uint16 of its bits."""
        if self.kind:
            return np.dtype(np.uint16)
        return np.dtype(dtype if self.values == "same" else self.values)

    def may_overflow(self, dtype: np.dtype) -> bool:
        """Whether a finite value of ``dtype`` may become infinite, by itself or in a sum of few."""
        return self.dtype(dtype).itemsize < dtype.itemsize

    def encode(self, values: Array, place: Place, step: Any) -> Array:
        """The wire's array: ``values`` itself where nothing is narrowed."""
        kind = self._half(values.dtype)
        if kind:
            codes = step.ops.empty(values.size, np.uint16)
            step.ops.narrow(codes, values.astype(np.float32, copy=False), kind)
            return codes.view(self.dtype(values.dtype))
        with np.errstate(over="ignore"):  # an overflow is reported by the reducer, once and on every rank
            return values.astype(self.dtype(values.dtype), copy=False)

    def decode(self, codes: Array, place: Place, step: Any) -> Array:
        """What a receiver reads, in the dtype of computation (``codes`` itself where nothing was narrowed)."""
        dtype = self.dtype(step.dtype)
        require_bytes(codes, place.size * dtype.itemsize)
        kind = self._half(step.dtype)
        if not kind:
            return codes.view(dtype).astype(step.dtype, copy=False)
        values = step.ops.empty(place.size, np.float32)
        step.ops.widen(values, codes.view(np.uint16), kind)
        return values.astype(step.dtype, copy=False)

    def _half(self, dtype: np.dtype) -> str | None:
        """The kernels' name of the half precision that values of ``dtype`` travel in, if they are for them to convert.

        float64 goes to float16 without a stop at float32, where it would be rounded twice.
        """
        if self.kind or (dtype == np.float32 and self.values == "float16"):
            return self.values
        return None
