"""Powers of two, one byte a value: natural compression."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..values import Array, Place
from . import _groups
from ._common import BYTE, InPlace, first_number, split

HEADER = np.dtype(np.int16)
NOT_FINITE = np.iinfo(HEADER).max  # as header: the message held NaN or infinity


class Natural(InPlace):
    """Each magnitude becomes the power of two below or above it at random: unbiased, variance at most 1/8 of x^2.

    Message: the exponent of the largest power (2 bytes), then a byte a value: its sign and one of 127 powers, or 0.
    Powers reach from the message's largest magnitude down to 2^-126 of it, further where that is the type's range;
    what lies below becomes that or 0, still unbiased.
    Cost: n + 2 bytes.
    Restrictions: magnitudes above the largest power of two of the type are cut off there.
    Reference: Horvath et al., Natural compression for distributed deep learning, MSML 2022 (arXiv 2019).
    """

    name = "natural"
    options = ()
    reference = "Horvath et al. 2022"

    def __init__(self) -> None:
        self._own: dict[tuple[int, int], tuple[Array, int]] = {}  # by place: the last message, and what its head says

    def encode(self, values: Array, place: Place, step: Any) -> Array:
        message = step.ops.empty(HEADER.itemsize + place.size, BYTE)
        header, packed = split(message, [1], HEADER)
        largest = _groups.peak(values, step)
        header[:] = top = top_of(largest, values.dtype)
        self._own[place.worker, place.start] = message, top
        if top == NOT_FINITE:
            packed[:] = 0
            return message
        if largest > 2.0**top:
            values, largest = _cut(values, 2.0**top, step.ops), 2.0**top
        step.ops.pack_natural(values, top, first_number(place), step.key(place.worker), packed, largest)
        return message

    def decode_into(self, values: Array, codes: Array, place: Place, step: Any) -> None:
        header, packed = split(codes, [1], HEADER)
        own, top = self._own.get((place.worker, place.start), (None, 0))
        if own is not codes:
            top = int(step.ops.to_host(header)[0])
        if top == NOT_FINITE:
            values[:] = np.nan
        else:
            step.ops.unpack_natural(packed, top, values)


def top_of(largest: float, dtype: np.dtype) -> int:
    """The exponent of the least power of two that is not below ``largest``, within what a byte's code allows.

    2^(top - 126) .. 2^top must be normal numbers of ``dtype``.
    """
    if not math.isfinite(largest):
        return NOT_FINITE
    highest = int(np.finfo(dtype).maxexp) - 1
    mantissa, exponent = math.frexp(largest)  # largest = mantissa 2^exponent, mantissa 0 or in [0.5, 1)
    return min(highest, max(127 - highest, exponent - (mantissa == 0.5)))


def _cut(values: Array, limit: float, ops: Any) -> Array:
    """The values within [-limit, limit]."""
    values, bound = values.copy(), ops.empty(values.size, values.dtype)
    bound[:] = limit
    ops.minimum(values, bound)
    ops.scale(bound, -1.0)
    ops.maximum(values, bound)
    return values
