"""Integers of one scale that all ranks share, so that an all-reduce adds them exactly."""

from __future__ import annotations

import math

import numpy as np

from ...errors import InvalidArgument
from ...types import Array
from ..interfaces import StepContext
from ..options import Option
from ..values import Place
from . import _groups
from ._common import InPlace, first_number, require_bytes


class ScaledInteger(InPlace):
    """Each value becomes a multiple of one unit, as an integer of ``bits`` bits; their sum over workers is exact.

    The unit follows from the largest magnitude of all workers, such that the sum of all workers' integers fits:
    each has room for (2^(bits-1) - 1) / workers. The error of a value is at most half a unit (``nearest``), or below a
    unit and right in expectation (``stochastic``).
    Cost: n bits / 8 bytes in the place of n v; one all-reduce of 8 bytes before it.
    Restrictions: at most (2^(bits-1) - 1) / 2 workers, 63 with 8 bits; NaN or infinity anywhere makes every value NaN.
    Reference: Sapio et al., SwitchML, NSDI 2021, section 3.7 (its scale from the largest exponent).
    """

    name = "scaled-integer"
    options = (
        Option("bits", str, "16", "bits of an integer on the wire", choices=("8", "16", "32")),
        Option("rounding", str, "nearest", "to the nearest integer, or up or down at random",
               choices=("nearest", "stochastic")),
    )
    reference = "Sapio et al. 2021 (SwitchML)"
    addable = True
    shares_scale = True

    def __init__(self, bits: str, rounding: str) -> None:
        self.dtype, self.rounding = np.dtype(f"int{bits}"), rounding
        self._peak = math.nan  # of the current step, as the unit is, which is NaN where values were not finite
        self._unit: float | None = None  # before the first step

    def check_workers(self, total: int) -> None:
        """Refuse more workers than the integers have room for."""
        room_of(total, self.dtype)

    def peak(self, values: list[Array], ctx: StepContext) -> float:
        """The largest magnitude of this rank's values; infinite if they are not finite."""
        peaks = [_groups.peak(one, ctx) for one in values]
        return max((one if math.isfinite(one) else math.inf for one in peaks), default=0.0)

    def share(self, peak: float, ctx: StepContext) -> None:
        """Settle the unit for the largest magnitude of all ranks."""
        self._peak = peak
        self._unit = unit_for(peak, ctx.workers.total, self.dtype, ctx.dtype) if math.isfinite(peak) else math.nan

    def encode(self, values: Array, place: Place, ctx: StepContext) -> Array:
        if self._unit is None:
            raise InvalidArgument(f"codec {self.name} has no scale yet: an exchange that encodes must call "
                                  "mpicomp.schemes.averaging.share_scale(values, ctx) first, on every rank")
        codes = ctx.ops.empty(values.size, self.dtype)
        if math.isnan(self._unit):
            codes[:] = 0
            return codes
        key = ctx.key(place.worker) if self.rounding == "stochastic" else None
        ctx.ops.quantise(values, self._unit, first_number(place), key, codes, self._peak)
        return codes

    def write(self, values: Array, codes: Array, place: Place, ctx: StepContext) -> None:
        require_bytes(codes, place.size * self.dtype.itemsize)
        if self._unit is None or math.isnan(self._unit):
            values[:] = np.nan
        else:
            ctx.ops.dequantise(codes.view(self.dtype), self._unit, values)


def room_of(workers: int, code: np.dtype) -> int:
    """The largest integer that each of ``workers`` may add to a sum of type ``code``."""
    room = int(np.iinfo(code).max) // workers - 1  # one less: rounding up at random may add one
    if room < 1:
        raise InvalidArgument(f"{workers} workers need wider integers than bits={8 * code.itemsize}: take bits="
                              f"{16 * code.itemsize}")
    return room


def unit_for(peak: float, workers: int, code: np.dtype, dtype: np.dtype) -> float:
    """The unit for which ``workers`` values of ``dtype`` up to ``peak`` add up within ``code``."""
    real, room = np.finfo(dtype), room_of(workers, code)
    unit = peak / room * (1 + 16 * float(real.eps))  # what rounding unit, 1/unit and their products can add
    return min(float(real.max), max(float(real.tiny), unit))  # 1/unit must be a number
