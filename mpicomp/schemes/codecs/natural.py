"""Powers of two, one byte per value: natural compression."""

from __future__ import annotations

from ...ops.arguments import HEAD
from ...types import Array
from ..interfaces import StepContext
from ..values import Place
from . import _groups
from ._common import BYTE, Streamed, first_number, require_bytes


class Natural(Streamed):
    """Each magnitude becomes the power of two below or above it at random: unbiased, variance at most 1/8 of x^2.

    Message: the exponent of the largest power (4 bytes), then a byte per value: its sign and one of 127 powers, or 0.
    Powers reach from the message's largest magnitude down to 2^-126 of it, further if the type's range is larger;
    a smaller value becomes the smallest power or 0, still unbiased.
    Cost: n + 4 bytes.
    Restrictions: magnitudes above the largest power of two of the type are cut off there.
    Reference: Horvath et al., Natural compression for distributed deep learning, MSML 2022 (arXiv 2019).
    """

    name = "natural"
    options = ()
    reference = "Horvath et al. 2022"

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], Array] = {}  # the last messages, by worker and piece

    def encode(self, values: Array, place: Place, ctx: StepContext) -> Array:
        message = self._made[place.worker, place.start] = ctx.ops.empty(HEAD.itemsize + place.size, BYTE)
        bounds = _groups.bounds_of_one(values.size, ctx)
        ctx.ops.encode_natural(values, bounds, first_number(place), ctx.key(place.worker), message)
        return message

    def reading(self, codes: Array, place: Place, ctx: StepContext) -> tuple[str, dict[str, object]]:
        require_bytes(codes, HEAD.itemsize + place.size)
        known = self._made.get((place.worker, place.start)) is codes
        return "decode_natural", {"message": codes, "known": known}
