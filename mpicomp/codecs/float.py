"""Floating-point values, as they are or narrowed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..options import Option
from ..values import Array


class Float:
    """Writes each value as float16, float32, float64, or in the gradient's own precision (``same``).

    Narrowing rounds to nearest even; the rounding error stays in the memory, because ``decode`` of what was
    sent is what the memory subtracts. float16 overflows above 65 504: an infinite mean is caught by the reducer.
    """

    name = "float"
    options = (
        Option("values", str, "same", "precision of a value on the wire",
               choices=("same", "float16", "float32", "float64")),
    )
    reference = "-"

    def __init__(self, values: str) -> None:
        self.values = values

    def dtype(self, dtype: np.dtype) -> np.dtype:
        """The wire's dtype for values of ``dtype``."""
        return np.dtype(dtype if self.values == "same" else self.values)

    def encode(self, values: Array, ops: Any) -> Array:
        """A fresh array in the wire's dtype."""
        with np.errstate(over="ignore"):  # an overflow is reported by the reducer, once and on every rank
            return values.astype(self.dtype(values.dtype))

    def decode(self, wire: Array, dtype: np.dtype, ops: Any) -> Array:
        """What a receiver reads, in ``dtype`` (the wire itself where nothing was narrowed)."""
        return wire.astype(dtype, copy=False)
