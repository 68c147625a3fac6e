"""Grid and block layout of error-bounded codes, shared by all array modules; :mod:`.oracle.bounded` defines them."""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgument
from .arguments import Array

BLOCK = 64  # elements that share a bit width
ESCAPED = 0xFF  # header of a block of plain values
MOST_TERMS = 1 << 16  # streams in one sum
STEP_BITS = 8  # significant bits of a step: few, so that step * integer is exact in float64
LARGEST_EXACT = 2**45  # with a step of STEP_BITS: 53 bits
LARGEST = {4: 2**30 - 1, 8: 2**51 - 1}  # magnitude of a sum's integers, by bytes per element: differences fit, too
WIDEST = {4: 32, 8: 53}  # bits of a difference of two of them in zigzag form
ORDERS = (1, 2, 3)  # of a block's differences
FIELDS = (0, 33, 50, 63)  # first value of a header's low bits for each order, and behind the last
EXACT = 27  # in bits: first differences of float64 that are wider have one of few widths
SHORT = 3  # bits of second differences, from which third ones cannot gain much


class Grid(NamedTuple):
    """The multiples of ``step`` that are within ``bound`` of the values they stand for."""

    bound: float
    step: float
    inverse: float


def grid_of(bound: float) -> Grid:
    """The grid whose step is the largest number of STEP_BITS bits not above ``2 * bound``."""
    if not 0 < bound < math.inf:
        raise InvalidArgument(f"bound must be a positive number, got {bound}")
    mantissa, exponent = math.frexp(bound)
    step = math.ldexp(int(math.ldexp(mantissa, STEP_BITS)), min(exponent, 1023) + 1 - STEP_BITS)
    inverse = 1 / step if step > 2 / sys.float_info.max else sys.float_info.max
    return Grid(float(bound), step, inverse)


def largest_integer(dtype: npt.DTypeLike, terms: int) -> int:
    """Largest magnitude of an encoded integer if ``terms`` streams are to be added."""
    if not 1 <= terms <= MOST_TERMS:
        raise InvalidArgument(f"terms must be in [1, {MOST_TERMS}], got {terms}")
    return min(LARGEST_EXACT, LARGEST[itemsize_of(dtype)] // terms)


def bounded_capacity(n: int, dtype: npt.DTypeLike) -> int:
    """Largest number of bytes of a stream of ``n`` elements."""
    itemsize = itemsize_of(dtype)
    return -(-n // BLOCK) * (1 + max(BLOCK * itemsize, itemsize + WIDEST[itemsize] * BLOCK // 8))


def block_sizes(dtype: npt.DTypeLike) -> np.ndarray:
    """Bytes behind the headers per header of a whole block; -1 for headers that no stream has."""
    itemsize = itemsize_of(dtype)
    sizes = np.full(256, -1)
    for size, bytes_of_first in enumerate((0, itemsize // 4, itemsize // 2, itemsize)):
        for field in range(FIELDS[-1]):
            order, width = order_and_width(field, itemsize)
            sizes[field | size << 6] = order * bytes_of_first + width * (BLOCK // 8)
    sizes[ESCAPED] = BLOCK * itemsize
    return sizes


def order_and_width(field: int, itemsize: int) -> tuple[int, int]:
    """Order of differences and bits of each for a header's low bits below 63."""
    order = max(order for order in ORDERS if FIELDS[order - 1] <= field)
    width = field - FIELDS[order - 1]
    wide = itemsize == 8 and order == 1 and width > EXACT
    return order, EXACT + (width - EXACT) * (WIDEST[8] - EXACT) // (FIELDS[1] - 1 - EXACT) if wide else width


def itemsize_of(dtype: npt.DTypeLike) -> int:
    """Bytes per element of float32 or float64."""
    if (dtype := np.dtype(dtype)) not in (np.float32, np.float64):
        raise InvalidArgument(f"dtype must be float32 or float64, got {dtype}")
    return dtype.itemsize


def require_room(codes: Array, n: int, dtype: npt.DTypeLike) -> None:
    """Refuse a buffer that a stream of ``n`` elements may not fit."""
    if codes.size < (room := bounded_capacity(n, dtype)):
        raise InvalidArgument(f"codes must have at least {room} elements for {n} of {np.dtype(dtype)}, "
                              f"got {codes.size}")


def require_streams(streams: list[Array], n: int, dtype: npt.DTypeLike) -> None:
    """Refuse a sum of nothing, and a negative number of elements."""
    itemsize_of(dtype)
    if not streams or n < 0:
        raise InvalidArgument(f"streams must be at least one, and n at least 0, got {len(streams)} and {n}")


def require_divisor(divisor: int) -> None:
    """Refuse a divisor below 1 or above what float64 holds exactly."""
    if not 1 <= divisor <= 2**53:
        raise InvalidArgument(f"divisor must be in [1, 2^53], got {divisor}")


def refused_stream(n: int, dtype: npt.DTypeLike) -> InvalidArgument:
    """The error for bytes that are no stream."""
    return InvalidArgument(f"codes must hold one whole stream of {n} elements of {np.dtype(dtype)} made by "
                           "encode_bounded or sum_bounded: the message was cut off or corrupted")


def refused_sum() -> InvalidArgument:
    """The error for a sum whose integers do not fit."""
    return InvalidArgument("streams must add up to integers that fit: encode them for at least as many terms")
