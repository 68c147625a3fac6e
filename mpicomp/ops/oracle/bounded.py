"""Error-bounded codes: integers on a shared grid, which add without error.

A value x becomes the integer q = rint(x / step), where step is the largest number of 8 significant bits not above
``2 * bound``, so that ``|x - step * q| <= bound``. x / step is computed in float64 as x * (1 / step); products step * q
are exact.

A stream has a header of four bytes per block of 128 elements, then the blocks. Blocks do not depend on one another:
each is decoded and added by itself, and the headers give its place. The last one is filled up with its last integer.

A block has an order k of differences, 1 to 3: codes are the k-th differences of its integers, and its first k codes are
0. Its integers up to there follow from k first numbers: an integer, the first difference behind it, and the first
difference of differences. Four groups of 32 codes have a bit width each. A group that follows a jump, at the end of a
field's row for example, may begin anew, as the block does: its first k codes are 0, and it has k first numbers.

The order is that of the smallest 4 w + k s, where w is the sum of the widths of the groups if all of them began anew,
and s half the bytes of an element; the lowest of several. With it, a group begins anew if that makes it narrower by
more than k s / 4 bits.

A header is a little-endian integer. From its low bits up: k - 1 (two bits); the size of first numbers (two bits): 0, 1,
2 or 4 bytes for float32 and 0, 2, 4 or 8 for float64; the groups behind the first that begin anew (a bit each); the
widths (six bits each); and 0. A block of zeros has the header 0. First numbers are in zigzag form (0, -1, 1, -2, ...
become 0, 1, 2, 3), little-endian, those of a group together. Codes follow by groups, in two's complement: a word of 32
bits for each bit of the width, from the lowest up; element i has bit i of each.

A block escapes to its plain values, under the header 0xFFFFFFFF, if one of them is not finite, is further than
``bound`` from its grid point, or has an integer above ``largest_integer``, which keeps finite values finite; the last
one is not filled up.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..arguments import Array
from ..error_bound import (
    BLOCK,
    BYTES_OF_HEADER,
    ESCAPED,
    GROUP,
    GROUPS,
    ORDERS,
    WIDEST,
    Header,
    block_sizes,
    grid_of,
    headers_of,
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
    grid = grid_of(bound)
    largest = largest_integer(x.dtype, terms, grid)
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

    Integers are added exactly. Of the streams whose block is not constant, the sum has the lowest order, and its groups
    begin anew if those of one do. If a block is escaped in any stream, its values are added in float64, in the order of
    the streams, and rounded once. All streams have the same ``bound``. Refuses bytes that are no stream, and sums that
    are wider than a code can be.
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
            given = [Header.read(int(headers_of(one, n)[len(headers)]), dtype.itemsize) for one in streams]
            header, body = _packed_sum(sum(blocks[1:], blocks[0]), given, dtype.itemsize)
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
    cost = itemsize // 2
    codes = {order: _differences(q, order, itemsize).reshape(GROUPS, GROUP) for order in ORDERS}
    narrow = {order: [_bits(group[order:]) for group in codes[order]] for order in ORDERS}
    order = min(ORDERS, key=lambda order: 4 * sum(narrow[order]) + order * cost)
    begun = [number == 0 or 4 * (_bits(group) - bits) > order * cost
             for number, (group, bits) in enumerate(zip(codes[order], narrow[order], strict=True))]
    return _coded(q, order, begun, itemsize)


def _packed_sum(q: np.ndarray, headers: list[Header], itemsize: int) -> tuple[int, bytes]:
    """Header and body of a sum of blocks."""
    varying = [header for header in headers if header.order > 1 or any(header.widths) or any(header.begun[1:])]
    begun = [number == 0 or any(header.begun[number] for header in varying) for number in range(GROUPS)]
    return _coded(q, min((header.order for header in varying), default=1), begun, itemsize)


def _coded(q: np.ndarray, order: int, begun: list[bool], itemsize: int) -> tuple[int, bytes]:
    """Header and body of a block as differences of an order, with the groups that begin anew."""
    lower = [_differences(q, k, itemsize) for k in range(order)]
    firsts = [_zigzag(int(lower[k][number * GROUP + k])) for number in range(GROUPS) if begun[number]
              for k in range(order)]
    codes = _differences(q, order, itemsize).reshape(GROUPS, GROUP)
    codes[begun, :order] = 0
    widths = [_bits(group) for group in codes]
    if max(widths) > WIDEST[itemsize]:
        raise refused_sum()
    size = next(size for size in (0, itemsize // 4, itemsize // 2, itemsize) if max(firsts) < 1 << (8 * size))
    body = [first.to_bytes(size, "little") for first in firsts]
    body += [np.packbits((group >> bit & 1).astype(np.uint8), bitorder="little").tobytes()
             for group, width in zip(codes, widths, strict=True) for bit in range(width)]
    return Header(order, size, begun, widths).value(itemsize), b"".join(body)


def _differences(q: np.ndarray, order: int, itemsize: int) -> np.ndarray:
    """Differences of a block that is filled up; as many as the order are 0."""
    whole = np.append(q, np.repeat(q[-1:], BLOCK - len(q)))
    return _wrapped(np.append(np.zeros(order, np.int64), np.diff(whole, order)), itemsize)


def _bits(codes: np.ndarray) -> int:
    """Bits of the widest code in two's complement; 0 for zeros."""
    return int((codes ^ (codes >> 63)).max() * 2 + bool(codes.any())).bit_length()


def _plain(values: np.ndarray) -> tuple[int, bytes]:
    """Header and body of an escaped block."""
    return ESCAPED, values.tobytes()


def _write(headers: list[int], bodies: list[bytes], codes: Array) -> int:
    stream = np.array(headers, "<u4").tobytes() + b"".join(bodies)
    codes[: len(stream)] = np.frombuffer(stream, np.uint8)
    return len(stream)


def _blocks(codes: Array, n: int, dtype: npt.DTypeLike) -> Iterator[np.ndarray]:
    """The blocks of a stream: integers, or the values of escaped ones; refuses bytes that are no stream."""
    itemsize, begin = itemsize_of(dtype), -(-n // BLOCK) * BYTES_OF_HEADER
    if len(codes) < begin:
        raise refused_stream(n, dtype)
    headers = headers_of(codes, n)
    sizes = block_sizes(headers, n, dtype)
    if (sizes < 0).any() or len(codes) != begin + sizes.sum():
        raise refused_stream(n, dtype)
    starts = begin + np.cumsum(sizes) - sizes
    for number, header in enumerate(headers.tolist()):
        body = bytes(codes[starts[number] :][: sizes[number]])
        length = min(BLOCK, n - number * BLOCK)
        yield np.frombuffer(body, dtype) if header == ESCAPED else _unpacked(header, body, itemsize)[:length]


def _unpacked(value: int, body: bytes, itemsize: int) -> np.ndarray:
    header, at = Header.read(value, itemsize), 0
    firsts = np.zeros((GROUPS, header.order), np.int64)
    for number in (number for number in range(GROUPS) if header.begun[number]):
        for k in range(header.order):
            firsts[number, k] = _unzigzag(int.from_bytes(body[at : at + header.size], "little"))
            at += header.size
    x = np.zeros((GROUPS, GROUP), np.int64)
    for number, width in enumerate(header.widths):
        for bit in range(width):
            plane = np.unpackbits(np.frombuffer(body, np.uint8, GROUP // 8, at), bitorder="little").astype(np.int64)
            x[number] += plane << bit if bit < width - 1 else -(plane << bit)
            at += GROUP // 8
    for k in reversed(range(header.order)):
        for number in range(GROUPS):
            before = firsts[number, k] if header.begun[number] else x[number - 1, -1]
            x[number] = before + np.cumsum(x[number])
            if header.begun[number]:
                x[number, :k] -= firsts[number, k]
    return _wrapped(x.reshape(-1), itemsize)


def _wrapped(x: np.ndarray, itemsize: int) -> np.ndarray:
    """Integers modulo 2^(8 itemsize), as which those of corrupt streams are computed."""
    return x.astype(f"i{itemsize}").astype(np.int64)


def _zigzag(x: int) -> int:
    return 2 * x if x >= 0 else -2 * x - 1


def _unzigzag(x: int) -> int:
    return x >> 1 if x % 2 == 0 else -(x >> 1) - 1


def _values(block: np.ndarray, step: float) -> np.ndarray:
    return block.astype(np.float64) * (step if block.dtype.kind == "i" else 1.0)
