"""One bit per value, with two reconstruction values per column."""

from __future__ import annotations

from ...types import Array
from ..interfaces import StepContext
from ..options import Option
from ..values import Place
from . import _groups
from ._common import Streamed, framed, packed_bytes, split


class OneBit(Streamed):
    """The sign of each value; receivers read the mean of its column's negative values, or of its others.

    A column is the weights of one output unit: a tensor of shape (out, ...) has ``out`` of them, a vector is one; of
    a sparse list, each tensor's values are one.
    Message: the columns' negative means, their positive means, then one bit per value.
    Cost: n/8 bytes + 2 v a column.
    Restrictions: biased, so a memory should keep the error; columns of few weights cost more than one bit per value.
    Reference: Seide et al., 1-bit stochastic gradient descent, Interspeech 2014, section 3.
    """

    name = "one-bit"
    options = (Option("column", int, 4096, "longest column; longer ones are cut", low=1),)
    reference = "Seide et al. 2014"

    def __init__(self, column: int) -> None:
        self.column = column

    def encode(self, values: Array, place: Place, ctx: StepContext) -> Array:
        bounds = self._bounds(place, ctx)
        means, nbytes = [bounds.size - 1] * 2, packed_bytes(place.size, 1)
        message, (negative, positive, bits) = framed(means, values.dtype, nbytes, ctx)
        ctx.ops.group_means(values, bounds, negative, positive)
        ctx.ops.pack_signs(values, bits)
        return message

    def reading(self, codes: Array, place: Place, ctx: StepContext) -> tuple[str, dict[str, object]]:
        bounds = self._bounds(place, ctx)
        negative, positive, bits = split(codes, [bounds.size - 1] * 2, ctx.dtype)
        return "unpack_signs", {"packed": bits, "bounds": bounds, "negative": negative, "positive": positive}

    def _bounds(self, place: Place, ctx: StepContext) -> Array:
        return _groups.bounds_by(("columns", self.column),
                                 lambda: _groups.column_starts(ctx.tensors, self.column), place, ctx)  # fmt: skip
