"""Block codes: blocks of 256 elements, each a scale and a code of 8 or 4 bits per element.

Blocks follow one another, the last one may be shorter: the bytes of whole blocks are those of the vector's parts.
A block is its scale, 4 bytes, then its codes. The scale is a float64 with 20 fraction bits, of which the upper half is
stored, little-endian: s = max(``max|x|`` / largest code, smallest normal number of x's precision), computed in float64
and cut off to these bits, so that no decoded value exceeds the block's largest in magnitude (a quotient in float32 may
be rounded up to such bits). If an element is not finite, the scale is NaN, all codes are 0, and the block is decoded as
NaN.

=======  =========  ============  =================================================================================
Format   Scale      Bits          Code of v = x * (1 / s), computed in x's precision
=======  =========  ============  =================================================================================
int8     max / 127  8             integer in two's complement, -127 to 127
int4     max / 7    4             the same, -7 to 7; byte j of m elements: j in its low bits, j + ceil(m / 2) in its
                                  high bits, which are 0 if there is no such element
fp8      max / 448  8             e4m3: sign, 4 bits of exponent (bias 7), 3 of fraction; the codes 0x7f and 0xff,
                                  which no encoder writes, stand for 480
=======  =========  ============  =================================================================================

v is rounded to nearest even; with a key stochastically, to floor(v + uniform) in steps of the code, with element
``first + i`` of the key's stream for element i (see :mod:`.random`); fp8 rounds ``|v|``. Codes are cut off at the
largest one.
"""

from __future__ import annotations

import numpy as np

from ..arguments import Array, Key
from ..block_codes import BLOCK, LARGEST, SCALE_BYTES, block_codes_nbytes, require_codes_of
from .random import uniform


def encode_blocks(x: Array, format: str, codes: Array, key: Key | None = None, first: int = 0) -> None:
    """``codes`` (`block_codes_nbytes` bytes) = a scale and codes per block of x, rounded to nearest without a key."""
    require_codes_of(x, format, codes)
    shares = None if key is None else uniform(len(x), first, key).astype(x.dtype)
    for start in range(0, len(x), BLOCK):
        block = x[start : start + BLOCK]
        stop = start + len(block)
        scale = _scale_of(block, LARGEST[format])
        with np.errstate(under="ignore"):
            scaled = np.zeros_like(block) if np.isnan(scale) else block * (x.dtype.type(1) / scale)
        packed = _ENCODERS[format](scaled, None if shares is None else shares[start:stop])
        head = np.float64(scale).view(np.uint64) >> np.uint64(32)
        message = int(head).to_bytes(SCALE_BYTES, "little") + packed.tobytes()
        begin = block_codes_nbytes(start, format)
        codes[begin : begin + len(message)] = np.frombuffer(message, np.uint8)


def decode_blocks(codes: Array, format: str, out: Array) -> None:
    """``out`` = code * scale, both in out's precision."""
    require_codes_of(out, format, codes)
    for start in range(0, len(out), BLOCK):
        part = out[start : start + BLOCK]
        block = codes[block_codes_nbytes(start, format) : block_codes_nbytes(start + len(part), format)].tobytes()
        scale = np.array([int.from_bytes(block[:SCALE_BYTES], "little") << 32], np.uint64).view(np.float64)
        values = _DECODERS[format](np.frombuffer(block, np.uint8, offset=SCALE_BYTES), len(part))
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            part[:] = values.astype(out.dtype) * scale.astype(out.dtype)


def _scale_of(block: Array, top: int) -> np.floating:
    if not np.isfinite(block).all():
        return block.dtype.type(np.nan)
    scale = np.maximum(np.float64(np.abs(block).max()) / top, np.finfo(block.dtype).tiny)
    cut = scale.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)
    return block.dtype.type(cut.view(np.float64))


def _whole(v: Array, shares: Array | None, top: int) -> Array:
    """Integers of magnitude at most ``top``."""
    rounded = np.rint(v) if shares is None else np.floor(v + shares)
    return np.clip(rounded, -top, top).astype(np.int8)


def _encode_int8(v: Array, shares: Array | None) -> Array:
    return _whole(v, shares, 127).view(np.uint8)


def _decode_int8(codes: Array, n: int) -> Array:
    return codes.view(np.int8)


def _encode_int4(v: Array, shares: Array | None) -> Array:
    nibbles = np.zeros(len(v) + len(v) % 2, np.uint8)
    nibbles[: len(v)] = _whole(v, shares, 7).view(np.uint8) & 15
    low, high = nibbles.reshape(2, -1)
    return low | high << 4


def _decode_int4(codes: Array, n: int) -> Array:
    nibbles = np.concatenate([codes & 15, codes >> 4]).astype(np.int64)
    return np.where(nibbles < 8, nibbles, nibbles - 16)[:n]


def _encode_fp8(v: Array, shares: Array | None) -> Array:
    size = np.abs(v)
    exponent = np.where(size < 2.0**-6, -6, np.frexp(size)[1] - 1)
    steps = np.ldexp(size, 3 - exponent)  # in [8, 16); below 8 for subnormal numbers, whose exponent is -6
    whole = np.rint(steps) if shares is None else np.floor(steps + shares)
    code = np.minimum((exponent + 6) * 8 + whole, 0x7E)  # 16 steps are 8 of the next exponent
    return code.astype(np.uint8) | np.signbit(v).astype(np.uint8) << 7


def _decode_fp8(codes: Array, n: int) -> Array:
    exponent, fraction = (codes >> 3 & 15).astype(np.int64), (codes & 7).astype(np.float64)
    size = np.ldexp(fraction + 8 * (exponent > 0), np.maximum(exponent, 1) - 10)
    return np.where(codes >> 7, -size, size)


_ENCODERS = {"int8": _encode_int8, "int4": _encode_int4, "fp8": _encode_fp8}
_DECODERS = {"int8": _decode_int8, "int4": _decode_int4, "fp8": _decode_fp8}
