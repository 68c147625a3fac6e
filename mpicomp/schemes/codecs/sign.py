"""One bit per value, with one scale per tensor."""

from __future__ import annotations

from ...types import Array
from ..interfaces import StepContext
from ..values import Place
from . import _groups
from ._common import Streamed, framed, packed_bytes, split


class Sign(Streamed):
    """The sign of each value times the mean magnitude of its tensor's values.

    Message: one scale per tensor, then one bit per value.
    Cost: n/8 bytes + v a tensor.
    Restrictions: biased, so a memory should keep the error.
    Reference: Karimireddy et al., Error feedback fixes SignSGD, ICML 2019, algorithm 2; the layer's scale of sparse
    lists: Chen et al., AdaComp, AAAI 2018.
    """

    name = "sign"
    options = ()
    reference = "Karimireddy et al. 2019"

    def encode(self, values: Array, place: Place, ctx: StepContext) -> Array:
        bounds = _groups.bounds_by_tensor(place, ctx)
        message, (scales, bits) = framed([bounds.size - 1], values.dtype, packed_bytes(place.size, 1), ctx)
        ctx.ops.group_norms(values, bounds, "mean", scales)
        ctx.ops.pack_signs(values, bits)
        return message

    def reading(self, codes: Array, place: Place, ctx: StepContext) -> tuple[str, dict[str, object]]:
        bounds = _groups.bounds_by_tensor(place, ctx)
        scales, bits = split(codes, [bounds.size - 1], ctx.dtype)
        return "unpack_signs", {"packed": bits, "bounds": bounds, "negative": None, "positive": scales}
