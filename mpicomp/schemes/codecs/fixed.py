"""One bit per value, all of the same magnitude: Strom's threshold."""

from __future__ import annotations

import numpy as np

from ...types import Array
from ..interfaces import StepContext
from ..options import LAM
from ..values import Place
from ._common import BYTE, InPlace, packed_bytes
from ._groups import bounds_of_one


class Fixed(InPlace):
    """Sends only the sign of each value; receivers read -lam or +lam, the threshold that selected them.

    A memory keeps the rest, so that a large value is sent over several steps.
    Message: one bit per value.
    Cost: k/8 bytes.
    Restrictions: without ``lam``, a selector with a threshold.
    Reference: Strom, Scalable distributed DNN training using commodity GPU cloud computing, Interspeech 2015.
    """

    name = "fixed"
    options = (LAM,)
    reference = "Strom 2015"
    needs_threshold = True

    def __init__(self, lam: float | None) -> None:
        self.lam = lam

    def encode(self, values: Array, place: Place, ctx: StepContext) -> Array:
        message = ctx.ops.empty(packed_bytes(place.size, 1), BYTE)
        ctx.ops.pack_signs(values, message)
        return message

    def write(self, values: Array, codes: Array, place: Place, ctx: StepContext) -> None:
        lam = ctx.selector.threshold(ctx) if self.lam is None else self.lam
        magnitude = ctx.ops.from_host(np.array([lam], ctx.dtype))
        ctx.ops.unpack_signs(codes.view(BYTE), bounds_of_one(place.size, ctx), None, magnitude, values)
