"""Few bits a value. ``bounds`` (int64, ascending, from 0 to n) cuts a vector into groups that share a scale.

Group g is ``[bounds[g], bounds[g + 1])`` and may be empty. Packed codes are a little-endian stream of bits, zero at its
end. Where rounding is stochastic, entry i uses element ``first + i`` of the stream of ``key`` (see :mod:`.random`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from ...errors import InvalidArgument
from .base import Array
from .random import Key, uniform

NORMS = ("l2", "max", "mean", "capped")
WIDTHS = (2, 4, 8, 16)  # bits of a level
HEAD = np.dtype(np.int16)  # of a message of powers of two
NOT_FINITE = int(np.iinfo(HEAD).max)  # as a head: there was NaN or infinity


def group_bounds(bounds: Array) -> Array:
    """``bounds``, an array of the host, on the device: looked at here, so that no operation has to ask for them again.

    Nobody may write into what is returned.
    """
    return bounds


def group_norms(x: Array, bounds: Array, kind: str, out: Array) -> None:
    """One number a group: ``"l2"`` Euclidean norm, ``"capped"`` the same but at most the largest number of x's type,
    ``"max"`` or ``"mean"`` of magnitudes; 0 for an empty group.

    Sums are accumulated in float64, in any order.
    """
    require_norm(kind)
    for g, group in enumerate(_groups(x, bounds)):
        size = np.abs(group.astype(np.float64))
        if kind == "max":
            out[g] = size.max(initial=0)
        else:
            out[g] = size.sum() / max(1, len(size)) if kind == "mean" else np.sqrt(np.square(size).sum())
    if kind == "capped":
        cap(out)


def cap(norms: Array) -> None:
    """Infinite norms become the largest number."""
    np.minimum(norms, np.finfo(norms.dtype).max, out=norms)


def limit_norms(x: Array, bounds: Array, factor: float, out: Array) -> None:
    """Each group's ``out`` becomes ``factor`` times the root mean square of its entries, where that is smaller.

    The norm is rounded to x's precision, and what follows is computed in float64. NaN on either side gives NaN.
    """
    norms = np.empty_like(out)
    group_norms(x, bounds, "l2", norms)
    limit(norms, bounds, factor, out)


def limit(norms: Array, bounds: Array, factor: float, out: Array) -> None:
    """``limit_norms``, the norms known."""
    limits = factor * norms.astype(np.float64) / np.sqrt(np.maximum(1, np.diff(bounds)))
    with np.errstate(over="ignore"):
        np.minimum(out, limits.astype(out.dtype), out=out)


def group_means(x: Array, bounds: Array, negative: Array, positive: Array) -> None:
    """The mean of each group's entries with the sign bit set, and of the others; 0 where there are none."""
    for g, group in enumerate(_groups(x, bounds)):
        for out, part in ((negative, group[np.signbit(group)]), (positive, group[~np.signbit(group)])):
            out[g] = part.astype(np.float64).sum() / max(1, len(part))


def pack_signs(x: Array, out: Array) -> None:
    """One bit an entry: 1 where the sign bit of x is not set."""
    out[:] = np.packbits(~np.signbit(x), bitorder="little")


def unpack_signs(packed: Array, bounds: Array, negative: Array | None, positive: Array, out: Array) -> None:
    """Each entry becomes its group's ``positive`` where its bit is 1, else its ``negative`` (None: minus the other)."""
    negative = -positive if negative is None else negative
    group, bits = _group_of(out, bounds), np.unpackbits(packed, count=len(out), bitorder="little")
    out[:] = np.where(bits, positive[group], negative[group])


def pack_levels(x: Array, bounds: Array, scales: Array, levels: int, width: int, first: int, key: Key,
                out: Array) -> None:
    """Stochastic rounding of ``|x|`` to multiples of scale/levels, unbiased for ``|x| <= scale``; cut off above.

    Code = levels + sign(x) * min(levels, floor(``|x|`` * (levels / scale) + uniform)), ``width`` bits each; levels
    where the group's scale is not positive or the product is NaN. Computed in x's precision.
    """
    require_levels(levels, width)
    t, group = x.dtype.type, _group_of(x, bounds)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.where(scales > 0, t(levels) / scales, t(0))
        size = np.abs(x) * inverse[group] + uniform(len(x), first, key).astype(x.dtype)
    level = np.minimum(np.floor(np.where(np.isnan(size), t(0), size)), t(levels))
    codes = (levels + np.where(np.signbit(x), -level, level)).astype(np.uint16)
    bits = (codes[:, None] >> np.arange(width, dtype=np.uint16)) & 1
    out[:] = np.packbits(bits.astype(np.uint8).ravel(), bitorder="little")


def unpack_levels(packed: Array, bounds: Array, scales: Array, levels: int, width: int, out: Array) -> None:
    """``(code - levels) * (scale / levels)``."""
    require_levels(levels, width)
    bits = np.unpackbits(packed, count=len(out) * width, bitorder="little").reshape(len(out), width)
    codes = (bits.astype(np.int64) << np.arange(width)).sum(axis=1)
    out[:] = (codes - levels).astype(out.dtype) * (scales / out.dtype.type(levels))[_group_of(out, bounds)]


def quantise(x: Array, unit: float, first: int, key: Key | None, codes: Array, largest: float | None = None) -> None:
    """``codes`` (int8, int16, int32) = floor(x * (1/unit) + uniform), or rounded to nearest even without a key.

    1/unit is rounded to x's precision. Refuses values whose code does not fit; ``codes`` may then hold anything.
    ``largest``, which no magnitude exceeds, may say that all fit: then a device need not be asked.
    """
    require_unit(unit)
    with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
        scaled = x * (x.dtype.type(1) / x.dtype.type(unit))
    rounded = np.rint(scaled) if key is None else np.floor(scaled + uniform(len(x), first, key).astype(x.dtype))
    require_codes(bool(np.all(np.abs(rounded.astype(np.float64)) <= np.iinfo(codes.dtype).max)), codes, unit)
    codes[:] = rounded.astype(codes.dtype)


def dequantise(codes: Array, unit: float, out: Array) -> None:
    """``out = codes * unit``, both rounded to out's precision first."""
    require_unit(unit)
    out[:] = codes.astype(out.dtype) * out.dtype.type(unit)


def pack_natural(x: Array, top: int, first: int, key: Key, out: Array) -> None:
    """Stochastic rounding of ``|x|`` to the powers of two below it and above it, a byte each: unbiased.

    Bit 7 is the sign; c = 1 .. 127 in the others stands for 2^(top - 127 + c), c = 0 for zero. What lies below
    2^(top - 126) becomes that or zero. Refuses ``|x| > 2^top`` (``out`` may then hold anything), and a ``top`` for
    which 2^(top - 126) .. 2^top are not all normal numbers of x's precision.
    """
    require_top(top, x)
    size = np.abs(x)
    require_magnitudes(bool(np.all(size <= np.ldexp(1.0, top))), top)
    mantissa, exponent = np.frexp(size)  # size = mantissa 2^exponent, mantissa in [0.5, 1)
    lowest = top - 126
    tiny = size < np.ldexp(x.dtype.type(1), lowest)
    below = np.where(tiny, lowest - 1, exponent - 1)  # 2^below is the power at or below (or zero, where tiny)
    share = np.where(tiny, np.ldexp(size, -lowest), 2 * mantissa - 1)  # of the way to the next one
    up = uniform(len(x), first, key).astype(x.dtype) < share
    code = np.where(size == 0, 0, below + up - top + 127)
    out[:] = code + np.where(np.signbit(x), 128, 0)


def unpack_natural(packed: Array, top: int, out: Array) -> None:
    """The inverse of ``pack_natural``'s code; ``top`` as there, for out's precision."""
    require_top(top, out)
    code = (packed & 127).astype(np.int64)
    size = np.where(code, np.ldexp(np.ones(len(out), out.dtype), code - 127 + top), 0)
    out[:] = np.where(packed >> 7, -size, size)


def encode_natural(x: Array, bounds: Array, first: int, key: Key, message: Array) -> None:
    """A ``message`` of bytes: the exponent ``top`` as int16, then `pack_natural`'s codes; ``bounds`` are of one group.

    2^top is the least power that is not below any magnitude, within what `pack_natural` takes; magnitudes above the
    largest power are cut off there. Where one is not finite, the head is NOT_FINITE and the codes are zero.
    """
    encode_natural_by(group_norms, pack_natural, x, bounds, first, key, message)


def encode_natural_by(norms: Callable[..., None], pack: Callable[..., None], x: Array, bounds: Array, first: int,
                      key: Key, message: Array) -> None:
    """``encode_natural`` by a ``group_norms`` and a ``pack_natural``."""
    largest, codes = np.empty(1, x.dtype), message[2:]
    norms(x, bounds, "max", largest)
    message[:2].view(HEAD)[0] = top = top_of(float(largest[0]), x.dtype)
    if top == NOT_FINITE:
        codes[:] = 0
    else:
        limit = x.dtype.type(2.0**top)
        pack(np.clip(x, -limit, limit) if largest[0] > limit else x, top, first, key, codes)


def decode_natural(message: Array, out: Array, known: bool = False) -> None:
    """What ``encode_natural``'s message stands for, NaN where values were not finite; refuses any other head.

    A message ``known`` to come from ``encode_natural`` needs no look at its head, for which a device would be asked.
    """
    decode_natural_by(unpack_natural, message, out)


def decode_natural_by(unpack: Callable[..., None], message: Array, out: Array) -> None:
    """``decode_natural`` by an ``unpack_natural``."""
    top = int(message[:2].view(HEAD)[0])
    if top == NOT_FINITE:
        out[:] = np.nan
    else:
        unpack(message[2:], top, out)


def top_of(largest: float, dtype: np.dtype) -> int:
    """The exponent of the least power of two that is not below ``largest``, within what a byte's code allows.

    2^(top - 126) .. 2^top must be normal numbers of ``dtype``.
    """
    if not math.isfinite(largest):
        return NOT_FINITE
    highest = int(np.finfo(dtype).maxexp) - 1
    mantissa, exponent = math.frexp(largest)  # largest = mantissa 2^exponent, mantissa 0 or in [0.5, 1)
    return min(highest, max(127 - highest, exponent - (mantissa == 0.5)))


def _groups(x: Array, bounds: Array) -> list[Array]:
    if len(bounds) < 1 or bounds[0] != 0 or bounds[-1] != len(x) or np.any(np.diff(bounds) < 0):
        raise InvalidArgument(f"bounds must ascend from 0 to {len(x)}")
    return [x[start:stop] for start, stop in pairwise(bounds)]


def _group_of(x: Array, bounds: Array) -> Array:
    return np.repeat(np.arange(len(bounds) - 1), [len(group) for group in _groups(x, bounds)])


def require_norm(kind: str) -> None:
    if kind not in NORMS:
        raise InvalidArgument(f"kind must be one of {', '.join(NORMS)}, got {kind}")


def require_levels(levels: int, width: int) -> None:
    if width not in WIDTHS or not 1 <= levels < 2 ** (width - 1):
        raise InvalidArgument(
            f"levels must be in [1, 2^(width-1) - 1] for a width of 2, 4, 8 or 16, got {levels} and {width}"
        )


def require_unit(unit: float) -> None:
    if not 0 < unit < float("inf"):
        raise InvalidArgument(f"unit must be a positive number, got {unit}")


def require_top(top: int, x: Array) -> None:
    bias = np.finfo(x.dtype).maxexp - 1
    if not 127 - bias <= top <= bias:
        raise InvalidArgument(f"top must be in [{127 - bias}, {bias}] for {x.dtype}, got {top}")


def require_codes(fit: bool, codes: Array, unit: float) -> None:
    if not fit:
        limit = np.iinfo(codes.dtype).max
        raise InvalidArgument(f"codes must be at most {limit} in magnitude: take a larger unit than {unit}")


def require_magnitudes(fit: bool, top: int) -> None:
    if not fit:
        raise InvalidArgument(f"magnitudes must be at most 2^{top}")
