"""Floating-point values, as they are or narrowed."""

from __future__ import annotations

import numpy as np

from ...types import Array
from ..interfaces import Codec, StepContext
from ..options import Option
from ..values import Place
from ._common import require_bytes


class Float(Codec):
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
    block = 1

    def __init__(self, values: str) -> None:
        self.values = values
        self.kind = "bfloat16" if values == "bfloat16" else None

    def wire_dtype(self, dtype: np.dtype) -> np.dtype:
        """The wire's dtype for values of ``dtype``; bfloat16 travels as the uint16 of its bits."""
        if self.values == "same":
            return np.dtype(dtype)
        return np.dtype(np.uint16 if self.kind else self.values)

    def code_nbytes(self, count: int, dtype: np.dtype) -> int:
        return count * self.wire_dtype(dtype).itemsize

    def sends_unchanged(self, dtype: np.dtype) -> bool:
        return self.values == "same" or self.wire_dtype(dtype) == dtype

    def may_overflow(self, dtype: np.dtype) -> bool:
        return self.values != "same" and self.wire_dtype(dtype).itemsize < dtype.itemsize

    def encode(self, values: Array, place: Place, ctx: StepContext) -> Array:
        """The wire's array: ``values`` itself where nothing is narrowed."""
        if self.values == "same":
            return values
        kind = self._half(values.dtype)
        if kind:
            codes = ctx.ops.empty(values.size, np.uint16)
            ctx.ops.narrow(codes, values.astype(np.float32, copy=False), kind)
            return codes.view(self.wire_dtype(values.dtype))
        with np.errstate(over="ignore"):  # an overflow is reported by the reducer, once and on every rank
            return values.astype(self.wire_dtype(values.dtype), copy=False)

    def decode(self, codes: Array, place: Place, ctx: StepContext) -> Array:
        """Values that a receiver reads, in the dtype of computation (``codes`` itself where nothing was narrowed)."""
        dtype = self.wire_dtype(ctx.dtype)
        require_bytes(codes, place.size * dtype.itemsize)
        if codes.dtype == dtype == ctx.dtype:
            return codes
        kind = self._half(ctx.dtype)
        if not kind:
            return codes.view(dtype).astype(ctx.dtype, copy=False)
        values = ctx.ops.empty(place.size, np.float32)
        ctx.ops.widen(values, codes.view(np.uint16), kind)
        return values.astype(ctx.dtype, copy=False)

    def decode_into(self, values: Array, codes: Array, place: Place, ctx: StepContext) -> None:
        kind = self.half(ctx.dtype)
        if kind is None or values.dtype != np.float32:
            super().decode_into(values, codes, place, ctx)
            return
        require_bytes(codes, place.size * 2)
        ctx.ops.widen(values, codes.view(np.uint16), kind)

    def half(self, dtype: np.dtype) -> str | None:
        own = type(self).encode is not Float.encode or type(self).decode is not Float.decode
        return None if own or dtype != np.float32 else self._half(dtype)

    def _half(self, dtype: np.dtype) -> str | None:
        """The kernels' name of the half precision that values of ``dtype`` travel in, if they are for them to convert.

        float64 goes to float16 without a stop at float32, where it would be rounded twice.
        """
        if self.kind or (dtype == np.float32 and self.values == "float16"):
            return self.values
        return None
