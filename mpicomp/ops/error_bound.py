"""Grid and block layout of error-bounded codes, shared by all array modules; :mod:`.oracle.bounded` defines them."""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgument
from .arguments import Array

GROUP = 32  # elements that share a bit width
GROUPS = 4
BLOCK = GROUPS * GROUP  # elements that share a header
BYTES_OF_HEADER = 4
ESCAPED = 0xFFFFFFFF  # header of a block of plain values
MOST_TERMS = 1 << 16  # streams in one sum
STEP_BITS = 8  # significant bits of a step: few, so that step * integer is exact in float64
LARGEST_EXACT = 2**45  # with a step of STEP_BITS: 53 bits
LARGEST = {4: 2**30 - 1, 8: 2**51 - 1}  # magnitude of a sum's integers, by bytes per element
ORDERS = (1, 2, 3)  # of a block's differences
WIDEST = {4: 32, 8: 55}  # bits of a code: third differences of those of float64, and modulo 2^32 of those of float32
WIDTH_BITS, FIRST_WIDTH = 6, 7  # of a width in a header, and its place


class Header(NamedTuple):
    """Contents of a header that is not ESCAPED."""

    order: int
    size: int  # bytes of a first number
    begun: list[bool]  # groups that begin anew
    widths: list[int]

    @classmethod
    def read(cls, value: int, itemsize: int) -> Header:
        size = (0, itemsize // 4, itemsize // 2, itemsize)[value >> 2 & 3]
        begun = [True, *(bool(value >> (3 + number) & 1) for number in range(1, GROUPS))]
        widths = [value >> (FIRST_WIDTH + WIDTH_BITS * number) & 63 for number in range(GROUPS)]
        return cls((value & 3) + 1, size, begun, widths)

    def value(self, itemsize: int) -> int:
        size = (0, itemsize // 4, itemsize // 2, itemsize).index(self.size)
        begun = sum(1 << (3 + number) for number in range(1, GROUPS) if self.begun[number])
        widths = sum(width << (FIRST_WIDTH + WIDTH_BITS * number) for number, width in enumerate(self.widths))
        return self.order - 1 | size << 2 | begun | widths


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


def largest_integer(dtype: npt.DTypeLike, terms: int, grid: Grid) -> int:
    """Largest magnitude of an encoded integer if ``terms`` streams are to be added."""
    if not 1 <= terms <= MOST_TERMS:
        raise InvalidArgument(f"terms must be in [1, {MOST_TERMS}], got {terms}")
    largest = min(LARGEST_EXACT, LARGEST[itemsize_of(dtype)] // terms)
    most = float(np.finfo(dtype).max)
    last = round(min(most * grid.inverse, LARGEST_EXACT))
    return min(largest, last - 1) if last * grid.step > most else largest  # a finite value must not become infinite


def bounded_capacity(n: int, dtype: npt.DTypeLike) -> int:
    """Largest number of bytes of a stream of ``n`` elements."""
    itemsize = itemsize_of(dtype)
    coded = WIDEST[itemsize] * BLOCK // 8 + GROUPS * ORDERS[-1] * itemsize
    return -(-n // BLOCK) * (BYTES_OF_HEADER + max(BLOCK * itemsize, coded))


def headers_of(stream: Array, n: int) -> Array:
    """The headers of a stream of ``n`` elements, as int64; those that are there."""
    whole = min(-(-n // BLOCK), stream.size // BYTES_OF_HEADER)
    each = stream[: whole * BYTES_OF_HEADER].reshape(whole, BYTES_OF_HEADER).astype(np.int64)
    return each[:, 0] | each[:, 1] << 8 | each[:, 2] << 16 | each[:, 3] << 24


def block_sizes(headers: Array, n: int, dtype: npt.DTypeLike) -> Array:
    """Bytes of each block of a stream of ``n`` elements; -1 for headers that no stream has."""
    itemsize = itemsize_of(dtype)
    size = headers >> 2 & 3
    begun = sum((headers >> (3 + number) & 1 for number in range(1, GROUPS)), start=1)
    widths = [headers >> (FIRST_WIDTH + WIDTH_BITS * number) & 63 for number in range(GROUPS)]
    known = (headers & 3 < len(ORDERS)) & (headers >> 31 == 0)
    for width in widths:
        known &= width <= WIDEST[itemsize]
    sizes = ((headers & 3) + 1) * begun * (itemsize >> (3 - size)) * (size > 0) + sum(widths) * (GROUP // 8)
    sizes = sizes * known + known - 1 + (headers == ESCAPED) * (BLOCK * itemsize + 1)
    sizes[-1:] -= (headers[-1:] == ESCAPED) * (-n % BLOCK * itemsize)
    return sizes


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
