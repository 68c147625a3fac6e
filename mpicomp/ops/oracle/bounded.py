"""Error-bounded codes: integers on a shared grid, which add without error.

A value x becomes the integer q = rint(x / step), where step is the largest number of 8 significant bits not above
``2 * bound``, so that ``|x - step * q| <= bound``. x / step is computed in float64 as x * (1 / step); products step * q
are exact.

A stream has one header byte per block of 64 elements, then the blocks. A block is a first integer and 64 differences,
each integer minus the one before it (the first difference is 0), in zigzag form: 0, -1, 1, -2, ... become 0, 1, 2, 3.
Differences do not cross blocks: a block is decoded and added by itself, and the headers give its place. If that makes
the block smaller, a second integer follows the first one, the difference of the first two elements, and codes are
differences of differences (the first two are 0).

The header's low 6 bits are the width, the bits of the largest code; of differences of differences, WIDEST + 1 more. Its
high 2 bits are the size of the first integer (and the second) in zigzag form, little-endian: 0, 1, 2 or 4 bytes for
float32 and 0, 2, 4 or 8 for float64. A block of zeros is its header.

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
    WIDEST,
    block_sizes,
    grid_of,
    itemsize_of,
    largest_integer,
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

    Integers are added exactly. If a block is escaped in any stream, its values are added in float64, in the order of
    the streams, and rounded once. All streams have the same ``bound``. Refuses bytes that are no stream, and sums that
    are wider than a difference can be.
    """
    require_streams(streams, n, dtype)
    dtype, grid = np.dtype(dtype), grid_of(bound)
    require_room(codes, n, dtype)
    headers, bodies = [], []
    for blocks in zip(*(list(_blocks(stream, n, dtype)) for stream in streams), strict=True):
        if any(block.dtype == dtype for block in blocks):
            total = _values(blocks[0], grid.step)
            with np.errstate(over="ignore", invalid="ignore"):
                for block in blocks[1:]:
                    total = total + _values(block, grid.step)
                header, body = _plain(total.astype(dtype))
        else:
            header, body = _packed(sum(blocks[1:], blocks[0]), dtype.itemsize)
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
    """Header and body of a block of integers."""
    q = np.append(q, np.repeat(q[-1:], BLOCK - len(q)))
    once = np.diff(q, prepend=q[0])
    twice = np.append(0, np.diff(once[1:], prepend=once[1]))
    width, size, body = _coded(q[:1], once, itemsize)
    wide, size_of_two, shorter = _coded(np.array([q[0], once[1]]), twice, itemsize)
    if (field := WIDEST[itemsize] + 1 + wide) < 63 and len(shorter) < len(body):
        return field | size_of_two << 6, shorter
    if width > WIDEST[itemsize]:
        raise refused_sum()
    return width | size << 6, body


def _coded(first: np.ndarray, codes: np.ndarray, itemsize: int) -> tuple[int, int, bytes]:
    """Width, code of the first integers' size, and body."""
    first, codes = _zigzag(first, itemsize), _zigzag(codes, itemsize)
    width, sizes = int(codes.max()).bit_length(), (0, itemsize // 4, itemsize // 2, itemsize)
    size = next(code for code in range(4) if int(first.max()) < 1 << (8 * sizes[code]))
    planes = [int(one).to_bytes(sizes[size], "little") for one in first]
    for shift, bits in _planes(width):
        plane = ((codes >> np.uint64(shift)) & np.uint64(2**bits - 1)).astype(np.uint8).reshape(8 // bits, 8 * bits)
        planes.append(np.bitwise_or.reduce(plane << (bits * np.arange(8 // bits, dtype=np.uint8))[:, None]).tobytes())
    return width, size, b"".join(planes)


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
    field, widest = header & 63, WIDEST[itemsize]
    firsts, width = (1, field) if field <= widest else (2, field - widest - 1)
    at = firsts * size
    for shift, bits in _planes(width):
        plane = np.frombuffer(body, np.uint8, 8 * bits, at)
        parts = plane >> (bits * np.arange(8 // bits, dtype=np.uint8))[:, None] & (2**bits - 1)
        codes |= parts.ravel().astype(np.uint64) << np.uint64(shift)
        at += 8 * bits
    first = _signed(np.array([int.from_bytes(body[k * size :][:size], "little") for k in range(firsts)], np.uint64))
    differences = _signed(codes)
    if firsts == 2:
        differences = first[1] + np.cumsum(differences)
        differences[0] -= first[1]
    return _wrapped(first[0] + np.cumsum(differences), itemsize)


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
