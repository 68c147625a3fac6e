"""A few levels a value, rounded stochastically: QSGD."""

from __future__ import annotations

import math

import numpy as np

from ...types import Array
from ..interfaces import StepContext
from ..options import Option
from ..values import Place
from . import _groups
from ._common import Streamed, first_number, framed, packed_bytes, split

WIDTHS = (2, 4, 8, 16)  # bits of a code
OPTIONS = (
    Option("levels", int, 7, "magnitudes a code tells apart beside 0; up to 1, 7, 127, 32767 in 2, 4, 8, 16 bits",
           low=1, high=32767),
    Option("bucket", int, 512, "neighbouring values that share a scale", low=1),
    Option("norm", str, "l2", "what the scale is: the bucket's Euclidean norm, or its largest magnitude",
           choices=("l2", "max")),
)


class Levels(Streamed):
    """Each magnitude becomes one of ``levels`` + 1 equally spaced parts of its bucket's norm, up or down at random.

    Unbiased: the expectation of what is decoded is the value. A value is off by less than scale / levels.
    Message: one scale per bucket, then 2, 4, 8 or 16 bits per value, the narrowest that holds 2 levels + 1 codes.
    Cost: n width / 8 bytes + v per bucket.
    Restrictions: a bucket is of neighbours among the values sent, in sparse lists too. With an error memory take
    more levels than sqrt(bucket): else the error may be larger than the value, and the memory would let it grow.
    Reference: Alistarh et al., QSGD, NeurIPS 2017, section 3 (fixed-width codes instead of Elias').
    """

    name = "levels"
    options = OPTIONS
    reference = "Alistarh et al. 2017 (QSGD)"
    finer = "more levels than sqrt(bucket), or norm=max with levels=2 or more"

    def __init__(self, levels: int, bucket: int, norm: str) -> None:
        self.levels, self.bucket, self.norm = levels, bucket, norm
        self.width = next(width for width in WIDTHS if levels < 1 << (width - 1))
        self.block = math.lcm(bucket, 8)  # whole buckets and whole bytes

    @property
    def error_factor(self) -> float:
        """The expected squared error over the values' squared norm: at most; for norm=max, of normal values, about."""
        if self.norm == "max":
            return 3 / self.levels**2
        return min(self.bucket / self.levels**2, math.sqrt(self.bucket) / self.levels)  # QSGD, lemma 3.1

    def encode(self, values: Array, place: Place, ctx: StepContext) -> Array:
        bounds = _groups.bounds_by_length(self.bucket, place, ctx)
        message, (scales, packed) = framed([bounds.size - 1], values.dtype, packed_bytes(place.size, self.width), ctx)
        # A norm beyond the largest number may as well be that: no magnitude is larger.
        ctx.ops.group_norms(values, bounds, "capped" if self.norm == "l2" else self.norm, scales)
        ctx.ops.pack_levels(values, bounds, scales, self.levels, self.width, first_number(place),
                             ctx.key(place.worker), packed)
        return message

    def reading(self, codes: Array, place: Place, ctx: StepContext) -> tuple[str, dict[str, object]]:
        bounds = _groups.bounds_by_length(self.bucket, place, ctx)
        scales, packed = split(codes, [bounds.size - 1], ctx.dtype)
        return "unpack_levels", {"packed": packed, "bounds": bounds, "scales": scales, "levels": self.levels,
                                 "width": self.width}

    def code_nbytes(self, count: int, dtype: np.dtype) -> int:
        return max(1, -(-count // self.bucket)) * dtype.itemsize + packed_bytes(count, self.width)
