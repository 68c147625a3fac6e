"""Minus, nothing or plus, two bits per value: TernGrad."""

from __future__ import annotations

import math

from ...types import Array
from ..interfaces import StepContext
from ..options import Option
from ..values import Place
from . import _groups
from ._common import Streamed, first_number, framed, packed_bytes, split

WIDTH = 2


class Ternary(Streamed):
    """Each value becomes -s, 0 or +s, s its tensor's largest magnitude, by a draw that is right in expectation.

    First, values are clipped at ``sigmas`` standard deviations of their tensor, which makes s smaller and so the
    variance. The deviation is taken about zero: so a tensor of one value, or of equal ones, is not clipped away.
    Unbiased but for the clipping.
    Message: one scale per tensor, then two bits per value.
    Cost: n/4 bytes + v a tensor.
    Restrictions: the error may be larger than the value, so that a memory would let it grow.
    Reference: Wen et al., TernGrad, NeurIPS 2017, sections 3 and 4.
    """

    name = "ternary"
    options = (Option("sigmas", float, 2.5, "standard deviations at which values are clipped; 0: not at all", low=0),)
    reference = "Wen et al. 2017 (TernGrad)"
    finer = "sigmas of 2 or less"

    def __init__(self, sigmas: float) -> None:
        self.sigmas = sigmas

    @property
    def error_factor(self) -> float:
        """The expected squared error over the values' squared norm, of normal values, about: scale |x| - x^2."""
        scale = self.sigmas or 5  # deviations; a million normal values reach to 5
        return max(0.0, scale * math.sqrt(2 / math.pi) - 1)

    def encode(self, values: Array, place: Place, ctx: StepContext) -> Array:
        bounds = _groups.bounds_by_tensor(place, ctx)
        message, (scales, packed) = framed([bounds.size - 1], values.dtype, packed_bytes(place.size, WIDTH), ctx)
        ctx.ops.group_norms(values, bounds, "max", scales)
        if self.sigmas:
            ctx.ops.limit_norms(values, bounds, self.sigmas, scales)
        first, key = first_number(place), ctx.key(place.worker)
        ctx.ops.pack_levels(values, bounds, scales, 1, WIDTH, first, key, packed)  # cuts off at the scale
        return message

    def reading(self, codes: Array, place: Place, ctx: StepContext) -> tuple[str, dict[str, object]]:
        bounds = _groups.bounds_by_tensor(place, ctx)
        scales, packed = split(codes, [bounds.size - 1], ctx.dtype)
        return "unpack_levels", {"packed": packed, "bounds": bounds, "scales": scales, "levels": 1, "width": WIDTH}
