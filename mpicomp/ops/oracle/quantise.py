"""Few bits per value. ``bounds`` (int64, ascending, from 0 to n) cuts a vector into groups that share a scale.

Group g is ``[bounds[g], bounds[g + 1])`` and may be empty. Packed codes are a little-endian stream of bits, zero at its
end. Where rounding is stochastic, entry i uses element ``first + i`` of the stream of ``key`` (see :mod:`.random`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np

from ...errors import InvalidArgument
from ..arguments import (
    HEAD,
    NOT_FINITE,
    Array,
    Coded,
    Key,
    require_codes,
    require_levels,
    require_magnitudes,
    require_norm,
    require_top,
    require_unit,
)
from .block_codes import decode_blocks as decode_blocks  # read by `coded`
from .random import uniform
from .selection import dense_update


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
        out[np.isinf(out)] = np.finfo(out.dtype).max


def limit_norms(x: Array, bounds: Array, factor: float, out: Array) -> None:
    """Each group's ``out`` becomes ``factor`` times the root mean square of its entries, if that is smaller.

    The norm is rounded to x's precision, and what follows is computed in float64. NaN on either side gives NaN.
    """
    norms = np.empty_like(out)
    group_norms(x, bounds, "l2", norms)
    for g, (start, stop) in enumerate(pairwise(bounds)):
        with np.errstate(over="ignore"):
            limit = (factor * np.float64(norms[g]) / np.sqrt(max(1, stop - start))).astype(out.dtype)
        out[g] = np.minimum(out[g], limit)


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

    Bit 7 is the sign; c = 1 .. 127 in the others stands for 2^(top - 127 + c), c = 0 for zero. A smaller magnitude than
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
    """A ``message`` of bytes: the exponent ``top`` as int32, then `pack_natural`'s codes; ``bounds`` are of one group.

    2^top is the least power that is not below any magnitude, within what `pack_natural` takes, or 1 if all are zero;
    magnitudes above the largest power are cut off there. If one is not finite, the head is NOT_FINITE and the codes
    are zero.
    """
    largest, head, codes = np.empty(1, x.dtype), message[: HEAD.itemsize].view(HEAD), message[HEAD.itemsize :]
    group_norms(x, bounds, "max", largest)
    if not np.isfinite(largest[0]):
        head[0], codes[:] = NOT_FINITE, 0
        return
    highest = int(np.finfo(x.dtype).maxexp) - 1
    lowest = 127 - highest if largest[0] else 0
    top = next((power for power in range(lowest, highest) if 2.0**power >= largest[0]), highest)
    head[0] = top
    pack_natural(np.clip(x, x.dtype.type(-(2.0**top)), x.dtype.type(2.0**top)), top, first, key, codes)


def decode_natural(message: Array, out: Array, known: bool = False) -> None:
    """Values of ``encode_natural``'s message, NaN if any was not finite; refuses any other head.

    A message ``known`` to come from ``encode_natural`` needs no look at its head, for which a device would be asked.
    """
    top = int(message[: HEAD.itemsize].view(HEAD)[0])
    if top == NOT_FINITE:
        out[:] = np.nan
    else:
        unpack_natural(message[HEAD.itemsize :], top, out)


class CodedValues(NamedTuple):
    """The ``size`` values that ``read(**arguments, out=out)`` writes."""

    read: Callable[..., None]
    arguments: dict[str, object]
    size: int


def coded(operation: str, arguments: dict[str, object], n: int, dtype: np.dtype) -> CodedValues:
    """The ``n`` values that ``operation(**arguments, out=out)`` of this module would write."""
    return CodedValues(globals()[operation], arguments, n)


def coded_mean(coded: Iterable[Array | Coded], factor: float, plus: Array | None, out: Array) -> None:
    """``out`` = 0, to which all values are added one after the other; then times ``factor``, then plus ``plus``.

    Every result is rounded to out's precision.
    """
    total = np.zeros_like(out)
    for one in coded:
        total += _decoded(one, out.dtype)
    out[:] = total * out.dtype.type(factor)
    if plus is not None:
        out += plus


def coded_update(memory: Array, grad: Array, sent: Array | Coded, first: int, beta: float) -> None:
    """``dense_update`` with the elements of ``sent`` from ``first`` on, a multiple of 8."""
    if first % 8:
        raise InvalidArgument(f"first must be a multiple of 8, got {first}")
    dense_update(memory, grad, _decoded(sent, grad.dtype)[first : first + grad.size], beta)


def _decoded(one: Array | Coded, dtype: np.dtype) -> Array:
    if not isinstance(one, CodedValues):
        return cast(Array, one)
    values = np.empty(one.size, dtype)
    one.read(**one.arguments, out=values)
    return values


def _groups(x: Array, bounds: Array) -> list[Array]:
    if len(bounds) < 1 or bounds[0] != 0 or bounds[-1] != len(x) or np.any(np.diff(bounds) < 0):
        raise InvalidArgument(f"bounds must ascend from 0 to {len(x)}")
    return [x[start:stop] for start, stop in pairwise(bounds)]


def _group_of(x: Array, bounds: Array) -> Array:
    return np.repeat(np.arange(len(bounds) - 1), [len(group) for group in _groups(x, bounds)])
