"""Error-bounded codes: integers on a shared grid, which add without error.

A value x becomes the integer q = rint(x / step), where step is the largest number of 8 significant bits not above
``2 * bound``, so that ``|x - step * q| <= bound``. x / step is computed in float64 as x * (1 / step); products step * q
are exact.

A stream has one header byte per block of 64 elements, then the blocks. A block is a first integer and 64 differences,
each integer minus the one before it (the first difference is 0), in zigzag form: 0, -1, 1, -2, ... become 0, 1, 2, 3.
Differences do not cross blocks: a block is decoded and added by itself, and the headers give its place. If that makes
the block smaller, codes are differences of differences (the first two are 0), and a second integer follows the first
one: the first of the differences. If these codes have more than SHORT bits, and if it makes the block smaller still,
codes are the differences of those (the first three are 0), and a third integer follows: the first difference of
differences.

The header's low 6 bits are the width, the bits of the largest code, counted from 0 for differences, from 33 for second
and from 50 for third ones, which have at most 16 and 12 bits. Widths above 27 of float64 are rounded up to 32, 37, 42,
47 or 53, which 28 to 32 stand for. The header's high 2 bits are the size of the first integers in zigzag form,
little-endian: 0, 1, 2 or 4 bytes for float32 and 0, 2, 4 or 8 for float64. A block of zeros is its header.

The codes follow in planes, from their low bits up: a plane of 64 bytes per 8 bits of the width, then one of 4, 2
and 1 bits for each of these that the rest of the width contains. Byte j of a plane of b bits has the bits of elements
j, j + 8 b, j + 16 b, ..., the first in its lowest bits. The last block is filled up with its last integer.

A block escapes to its plain values, under the header 0xFF, if one of them is not finite, is further than ``bound`` from
its grid point, or has an integer above ``largest_integer``; the last one is not filled up.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..arguments import Array
from ..error_bound import (
    BLOCK,
    ESCAPED,
    FIELDS,
    SHORT,
    block_sizes,
    grid_of,
    itemsize_of,
    largest_integer,
    order_and_width,
    refused_stream,
    refused_sum,
    require_divisor,
    require_room,
    require_streams,
)


def encode_bounded(x: Array, bound: float, terms: int, codes: Array) -> tuple[int, int]:
    """Write the stream of x to the front of ``codes``; return its bytes and the number of blocks that escaped.

    The integers of ``terms`` such streams add up without overflow.
    """
    grid, largest = grid_of(bound), largest_integer(x.dtype, terms)
    require_room(codes, len(x), x.dtype)
    headers, bodies = [], []
    for start in range(0, len(x), BLOCK):
        block = x[start : start + BLOCK]
        wide = block.astype(np.float64)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            scaled = wide * grid.inverse
            whole = np.rint(scaled)
            fits = (np.abs(scaled) <= largest) & (np.abs(wide - grid.step * whole) <= grid.bound)
        header, body = _packed(whole.astype(np.int64), x.itemsize) if fits.all() else _plain(block)
        headers.append(header)
        bodies.append(body)
    return _write(headers, bodies, codes), headers.count(ESCAPED)


def sum_bounded(streams: list[Array], n: int, dtype: npt.DTypeLike, bound: float, codes: Array) -> tuple[int, int]:
    """Write the sum of ``streams`` of n elements to ``codes``; return its bytes and the number of escaped blocks.

    Integers are added exactly. Codes of their sum are differences of the lowest order in the streams whose block is not
    constant, or of a lower one if they are too wide. If a block is escaped in any stream, its values are added in
    float64, in the order of the streams, and rounded once. All streams have the same ``bound``. Refuses bytes that are
    no stream, and sums that are wider than a difference can be.
    """
    require_streams(streams, n, dtype)
    dtype, grid = np.dtype(dtype), grid_of(bound)
    require_room(codes, n, dtype)
    headers: list[int] = []
    bodies: list[bytes] = []
    for blocks in zip(*(list(_blocks(stream, n, dtype)) for stream in streams), strict=True):
        if any(block.dtype == dtype for block in blocks):
            total = _values(blocks[0], grid.step)
            with np.errstate(over="ignore", invalid="ignore"):
                for block in blocks[1:]:
                    total = total + _values(block, grid.step)
                header, body = _plain(total.astype(dtype))
        else:
            header, body = _packed_sum(sum(blocks[1:], blocks[0]), [int(one[len(headers)]) for one in streams], dtype)
        headers.append(header)
        bodies.append(body)
    return _write(headers, bodies, codes), headers.count(ESCAPED)


def decode_bounded(codes: Array, bound: float, divisor: int, out: Array) -> None:
    """``out = step * q / divisor``, computed in float64; escaped blocks / divisor. Refuses bytes that are no stream."""
    grid = grid_of(bound)
    require_divisor(divisor)
    for number, block in enumerate(list(_blocks(codes, len(out), out.dtype))):
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            out[number * BLOCK :][: len(block)] = _values(block, grid.step) / divisor


def _packed(q: np.ndarray, itemsize: int) -> tuple[int, bytes]:
    """Header and body of a block of integers, in the order that makes it short."""
    best = _coded(q, 1, itemsize)
    assert best is not None, "of integers up to largest_integer"
    for order, most in ((2, 0), (3, SHORT)):
        shorter = _coded(q, order, itemsize) if order_and_width(best[0] & 63, itemsize)[1] > most else None
        if shorter is None or len(shorter[1]) >= len(best[1]):
            break
        best = shorter
    return best


def _packed_sum(q: np.ndarray, headers: list[int], dtype: np.dtype) -> tuple[int, bytes]:
    """Header and body of a sum of blocks."""
    orders = [order_and_width(header & 63, dtype.itemsize)[0] for header in headers if header & 63]
    for order in range(min(orders, default=1), 0, -1):
        coded = _coded(q, order, dtype.itemsize)
        if coded is not None:
            return coded
    raise refused_sum()


def _coded(q: np.ndarray, order: int, itemsize: int) -> tuple[int, bytes] | None:
    """Header and body of a block as differences of an order; None if these are too wide."""
    codes, first = np.append(q, np.repeat(q[-1:], BLOCK - len(q))), []
    for place in range(order):
        first.append(codes[place])
        codes = np.append(np.zeros(place + 1, np.int64), np.diff(codes[place:]))
    firsts, codes = _zigzag(np.array(first), itemsize), _zigzag(codes, itemsize)
    bits, sizes = int(codes.max()).bit_length(), (0, itemsize // 4, itemsize // 2, itemsize)
    fields = [field for field in range(*FIELDS[order - 1 : order + 1]) if order_and_width(field, itemsize)[1] >= bits]
    if not fields:
        return None
    size = next(code for code in range(4) if int(firsts.max()) < 1 << (8 * sizes[code]))
    planes = [int(one).to_bytes(sizes[size], "little") for one in firsts]
    for shift, bits in _planes(order_and_width(fields[0], itemsize)[1]):
        plane = ((codes >> np.uint64(shift)) & np.uint64(2**bits - 1)).astype(np.uint8).reshape(8 // bits, 8 * bits)
        planes.append(np.bitwise_or.reduce(plane << (bits * np.arange(8 // bits, dtype=np.uint8))[:, None]).tobytes())
    return fields[0] | size << 6, b"".join(planes)


def _plain(values: np.ndarray) -> tuple[int, bytes]:
    """Header and body of an escaped block."""
    return ESCAPED, values.tobytes()


def _write(headers: list[int], bodies: list[bytes], codes: Array) -> int:
    stream = bytes(headers) + b"".join(bodies)
    codes[: len(stream)] = np.frombuffer(stream, np.uint8)
    return len(stream)


def _blocks(codes: Array, n: int, dtype: npt.DTypeLike) -> Iterator[np.ndarray]:
    """The blocks of a stream: integers, or the values of escaped ones; refuses bytes that are no stream."""
    itemsize, count = itemsize_of(dtype), -(-n // BLOCK)
    sizes = block_sizes(dtype)[codes[:count]]
    if len(codes) >= count > 0 and codes[count - 1] == ESCAPED:
        sizes[-1] = (n - (count - 1) * BLOCK) * itemsize
    if len(codes) < count or (sizes < 0).any() or len(codes) != count + sizes.sum():
        raise refused_stream(n, dtype)
    starts = count + np.cumsum(sizes) - sizes
    for number in range(count):
        body = bytes(codes[starts[number] :][: sizes[number]])
        header, length = int(codes[number]), min(BLOCK, n - number * BLOCK)
        yield np.frombuffer(body, dtype) if header == ESCAPED else _unpacked(header, body, itemsize)[:length]


def _unpacked(header: int, body: bytes, itemsize: int) -> np.ndarray:
    size, codes = (0, itemsize // 4, itemsize // 2, itemsize)[header >> 6], np.zeros(BLOCK, np.uint64)
    order, width = order_and_width(header & 63, itemsize)
    at = order * size
    for shift, bits in _planes(width):
        plane = np.frombuffer(body, np.uint8, 8 * bits, at)
        parts = plane >> (bits * np.arange(8 // bits, dtype=np.uint8))[:, None] & (2**bits - 1)
        codes |= parts.ravel().astype(np.uint64) << np.uint64(shift)
        at += 8 * bits
    firsts = _signed(np.array([int.from_bytes(body[k * size :][:size], "little") for k in range(order)], np.uint64))
    integers = _signed(codes)
    for place in reversed(range(order)):  # what stands before a difference's order is no part of it
        integers = firsts[place] + np.cumsum(integers)
        integers[:place] -= firsts[place]
    return _wrapped(integers, itemsize)


def _planes(width: int) -> Iterator[tuple[int, int]]:
    """Lowest bit and number of bits of each plane."""
    shift = 0
    for bits in (*[8] * (width // 8), *(bits for bits in (4, 2, 1) if width & bits)):
        yield shift, bits
        shift += bits


def _wrapped(x: np.ndarray, itemsize: int) -> np.ndarray:
    """Integers modulo 2^(8 itemsize), as which those of corrupt streams are computed."""
    return x.astype(f"i{itemsize}").astype(np.int64)


def _zigzag(x: np.ndarray, itemsize: int) -> np.ndarray:
    x = _wrapped(x, itemsize)
    return ((x << 1) ^ (x >> 63)).astype(f"u{itemsize}").astype(np.uint64)


def _signed(x: np.ndarray) -> np.ndarray:
    return (x >> np.uint64(1)).view(np.int64) ^ -(x & np.uint64(1)).view(np.int64)


def _values(block: np.ndarray, step: float) -> np.ndarray:
    return block.astype(np.float64) * (step if block.dtype.kind == "i" else 1.0)
