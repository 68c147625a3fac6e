"""Stochastic rounding to multiples of one unit."""

from __future__ import annotations

import numpy as np

from ...ops.arguments import Coded
from ...types import Array
from ..interfaces import StepContext
from ..options import Option
from ..values import Place
from . import _groups
from ._common import BYTE, Streamed, first_number, require_bytes

CODES = (np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int32))


class Stochastic(Streamed):
    """Each value becomes the multiple of ``unit`` below or above it at random: unbiased, off by less than ``unit``.

    Message: multiples as int8, int16 or int32, the narrowest that holds all of the message; if none is narrower
    than the values, the values themselves, exactly. The receiver derives the type from the message's length.
    Cost: n bytes times 1, 2 or (float64 alone) 4; n v at most.
    Restrictions: the bound is absolute: choose the unit by the scale of the gradients.
    Reference: an absolute compressor of Sahu et al., NeurIPS 2021; the rounding: Gupta et al., Deep learning with
    limited numerical precision, ICML 2015.
    """

    name = "stochastic"
    options = (Option("unit", float, 1e-3, "values become multiples of it, on the gradient's scale",
                      low=1e-30, high=1e30),)
    reference = "Sahu et al. 2021; Gupta et al. 2015"

    def __init__(self, unit: float) -> None:
        self.unit = unit

    def encode(self, values: Array, place: Place, ctx: StepContext) -> Array:
        largest = _groups.peak(values, ctx)
        dtype = self._narrowest(largest, values.dtype)
        if dtype == values.dtype:
            return values.view(BYTE)
        codes = ctx.ops.empty(values.size, dtype)
        ctx.ops.quantise(values, self.unit, first_number(place), ctx.key(place.worker), codes, largest)
        return codes.view(BYTE)

    def write(self, values: Array, codes: Array, place: Place, ctx: StepContext) -> None:
        if self._sends_values(codes, place, ctx):
            values[:] = codes.view(ctx.dtype)
        elif place.size:
            super().write(values, codes, place, ctx)

    def coded(self, codes: Array, place: Place, ctx: StepContext) -> Array | Coded:
        sends_values = self._sends_values(codes, place, ctx) or not place.size
        return self.decode(codes, place, ctx) if sends_values else super().coded(codes, place, ctx)

    def reading(self, codes: Array, place: Place, ctx: StepContext) -> tuple[str, dict[str, object]]:
        return "dequantise", {"codes": codes.view(f"i{codes.nbytes // place.size}"), "unit": self.unit}

    def _sends_values(self, codes: Array, place: Place, ctx: StepContext) -> bool:
        """True if codes are the values themselves; refuses codes of a length that no type has."""
        width = codes.nbytes // max(1, place.size)
        widths = [code.itemsize for code in CODES if code.itemsize < ctx.dtype.itemsize] + [ctx.dtype.itemsize]
        require_bytes(codes, place.size * (width if width in widths else ctx.dtype.itemsize))
        return width == ctx.dtype.itemsize

    def _narrowest(self, peak: float, dtype: np.dtype) -> np.dtype:
        """Type of the codes of values up to ``peak``: the values' own if no integers are narrower or ``peak`` is not
        finite.
        """
        for code in CODES:
            # one more for rounding up, and one for what float arithmetic adds to it
            if code.itemsize < dtype.itemsize and peak / self.unit + 2 <= np.iinfo(code).max:
                return code
        return dtype
