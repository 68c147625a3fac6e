"""Eight or four bits per value, with a scale per block of 256."""

from __future__ import annotations

import numpy as np

from ...ops.block_codes import BLOCK, FORMATS, HALF_STEP, block_codes_nbytes
from ...types import Array
from ..interfaces import StepContext
from ..options import Option
from ..values import Place
from ._common import BYTE, Streamed, first_number, require_bytes


class Blocks(Streamed):
    """Each value becomes an integer of 8 or 4 bits, or an 8-bit float (e4m3), times its block's scale.

    A block is 256 neighbours among the values sent; its scale follows from their largest magnitude, which is coded
    without error but for the scale's own rounding. The error of a value is at most 1/254 (``int8``), 1/14 (``int4``) or
    1/28 (``fp8``) of its block's largest magnitude, for stochastic rounding twice that, then without bias. NaN and
    infinity make all values of their block NaN.
    Message: per block its scale (4 bytes), then the codes.
    Cost: n (1 + 1/64) bytes, ``int4`` n (1/2 + 1/64).
    Restrictions: none.
    Reference: Wang et al., ZeRO++, ICLR 2024, section 3.3; EQuARX, 2025; the float: Micikevicius et al., FP8 formats
    for deep learning, 2022.
    """

    name = "blocks"
    options = (
        Option("format", str, "int8", "how a value is written", choices=FORMATS),
        Option("rounding", str, "nearest", "to the nearest code, or up or down at random",
               choices=("nearest", "stochastic")),
    )
    reference = "Wang et al. 2024 (ZeRO++)"
    finer = "format=int8"
    block = BLOCK
    shows_nonfinite = True

    def __init__(self, format: str, rounding: str) -> None:
        self.format, self.stochastic = format, rounding == "stochastic"

    @property
    def error_factor(self) -> float:
        """The expected squared error over the values' squared norm, of normal values, of which a block's largest is 3.

        Rounded to nearest, an error is never larger than the value.
        """
        step = 3 * 2 * HALF_STEP[self.format]
        return step**2 / (6 if self.stochastic else 12)

    def code_nbytes(self, count: int, dtype: np.dtype) -> int:
        return block_codes_nbytes(count, self.format)

    def encode(self, values: Array, place: Place, ctx: StepContext) -> Array:
        codes = ctx.ops.empty(block_codes_nbytes(values.size, self.format), BYTE)
        key = ctx.key(place.worker) if self.stochastic else None
        ctx.ops.encode_blocks(values, self.format, codes, key, first_number(place))
        return codes

    def reading(self, codes: Array, place: Place, ctx: StepContext) -> tuple[str, dict[str, object]]:
        require_bytes(codes, block_codes_nbytes(place.size, self.format))
        return "decode_blocks", {"codes": codes.view(BYTE), "format": self.format}
