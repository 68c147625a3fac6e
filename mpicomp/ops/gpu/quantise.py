"""Launchers of codes of few bits per value; see :mod:`..oracle.quantise`.

Four neighbours a thread, or a byte of eight bits; norms take a few threads a short group, and a block a piece of a long
one. Bounds that `group_bounds` did not make, and values that may not fit, are looked at first, which waits for the
device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...errors import InvalidArgument
from ..arguments import (
    HEAD,
    NOT_FINITE,
    Key,
    dtype_name,
    require_codes,
    require_levels,
    require_magnitudes,
    require_norm,
    require_top,
    require_unit,
)
from .arguments import bits_dtype, check, kind_of
from .cuda_runtime import (
    CODE,
    CODE_PIECE,
    GROUP_PIECE,
    REAL,
    TEAM_MOST,
    THREADS,
    UNIT,
    WARP,
    Array,
    blocks_for,
    launch,
    on_device,
    to_host,
    xp,
)
from .random import stream

KIND = {"l2": ("Square", "Norm"), "capped": ("Square", "CappedNorm"), "mean": ("Magnitude", "MeanMagnitude")}
NULL = np.uintp(0)


# ---- one number a group

class GroupBounds(NamedTuple):
    """Bounds of groups on the device, known to be valid, and which threads sum which of them; see norms.cu.

    A team has a thread for every 4 to 8 elements of the mean group, at most a warp. Groups of over TEAM_MOST elements a
    thread are long: blocks take them, piece by piece, and where the mean group is, a block also adds up its pieces.
    """

    array: Array
    n: int
    number: int
    team: int
    pieces: int  # of the long groups
    starts: Array  # on the device: the number of each group's first piece

    @property
    def size(self) -> int:
        return self.number + 1


def group_bounds(bounds: np.ndarray) -> Array:
    return _cut(bounds, int(bounds[-1]) if bounds.size else 0)


def _cut(bounds: np.ndarray, n: int) -> GroupBounds:
    """The groups that bounds on the host make; refuses those that do not cut ``[0, n)``."""
    lengths = np.diff(bounds)
    if not bounds.size or bounds[0] or bounds[-1] != n or (lengths < 0).any():
        raise InvalidArgument(f"bounds must ascend from 0 to {n}")
    count = bounds.size - 1
    mean, most = n // max(count, 1), WARP * TEAM_MOST  # what a warp takes alone
    team = THREADS if mean > most else min(WARP, 1 << (mean // 8).bit_length())
    longest = min(team, WARP) * TEAM_MOST  # of the short groups
    starts = np.zeros(bounds.size, np.int64)
    np.cumsum((lengths + (GROUP_PIECE - 1 - longest)) // GROUP_PIECE, out=starts[1:])  # a short group has none
    both = xp().asarray(np.concatenate([bounds, starts]))
    return GroupBounds(both[: bounds.size], n, count, team, int(starts[-1]), both[bounds.size :])


def _groups(bounds: Array, n: int) -> GroupBounds:
    """The groups of ``n`` elements; waits for the device to validate bounds that are an array."""
    if not isinstance(bounds, GroupBounds):
        check(bounds, "bounds", np.dtype(np.int64))
        return _cut(to_host(bounds), n)
    if bounds.n != n:
        raise InvalidArgument(f"bounds must ascend from 0 to {n}")
    return bounds


@on_device
def group_norms(x: Array, bounds: Array, kind: str, out: Array) -> None:
    kind_of(x, "x", REAL)
    groups = _groups(bounds, x.size)
    check(out, "out", x.dtype, groups.number)
    require_norm(kind)
    if kind == "max":
        _maxima(x, groups, out)
    else:
        _sum(x, groups, *KIND[kind], 0.0, out)


@on_device
def limit_norms(x: Array, bounds: Array, factor: float, out: Array) -> None:
    kind_of(x, "x", REAL)
    groups = _groups(bounds, x.size)
    check(out, "out", x.dtype, groups.number)
    _sum(x, groups, "Square", "Limit", factor, out)


@on_device
def group_means(x: Array, bounds: Array, negative: Array, positive: Array) -> None:
    kind_of(x, "x", REAL)
    groups = _groups(bounds, x.size)
    check(negative, "negative", x.dtype, groups.number)
    check(positive, "positive", x.dtype, groups.number)
    _sum(x, groups, "Signs", "Means", 0.0, negative, positive)


def _sum(x: Array, groups: GroupBounds, term: str, kind: str, factor: float, out: Array, other: Array = NULL) -> None:
    """Sums of terms, float64, and what ``kind`` makes of them: one launch, two where groups are long."""
    t, count, pieces = REAL[dtype_name(x.dtype)], np.int64(groups.number), np.int64(groups.pieces)
    given, sums = (x, groups.array, groups.starts, count), NULL
    if groups.pieces:
        sums = xp().empty((3 if term == "Signs" else 1) * groups.pieces, np.float64)
        launch("norms", f"sum_pieces<{t}, {term}>", blocks_for(groups.pieces, 1), *given, pieces, sums)
    team, made = np.int32(groups.team), (np.float64(factor), out, other)
    launch("norms", f"sum_groups<{t}, {kind}>", _blocks(groups), *given, team, pieces, sums, *made)


def _maxima(x: Array, groups: GroupBounds, out: Array) -> None:
    """Each group's largest magnitude."""
    keys = out.view(bits_dtype(x))
    if groups.pieces:
        keys[:] = 0
    blocks = max(_blocks(groups), blocks_for(groups.pieces, 1))
    given = x, groups.array, groups.starts, np.int64(groups.number), np.int32(groups.team)
    launch("norms", f"group_maxima<{REAL[dtype_name(x.dtype)]}>", blocks, *given, keys)


def _blocks(groups: GroupBounds) -> int:
    return blocks_for(groups.number, THREADS // groups.team)


# ---- one bit an entry

@on_device
def pack_signs(x: Array, out: Array) -> None:
    t, packed = kind_of(x, "x", REAL), (x.size + 7) // 8
    check(out, "out", np.dtype(np.uint8), packed)
    launch("quantise", f"pack_signs<{t}>", blocks_for(packed), x, np.int64(x.size), out)


@on_device
def unpack_signs(packed: Array, bounds: Array, negative: Array | None, positive: Array, out: Array) -> None:
    t, nbytes = kind_of(out, "out", REAL), (out.size + 7) // 8
    check(packed, "packed", np.dtype(np.uint8), nbytes)
    groups = _groups(bounds, out.size)
    if negative is not None:
        check(negative, "negative", out.dtype, groups.number)
    check(positive, "positive", out.dtype, groups.number)
    given = packed, groups.array, np.int64(groups.number), NULL if negative is None else negative, positive
    launch("quantise", f"unpack_signs<{t}>", blocks_for(out.size, CODE_PIECE), *given, np.int64(out.size), out)


# ---- levels of a group's scale

@on_device
def pack_levels(x: Array, bounds: Array, scales: Array, levels: int, width: int, first: int, key: Key,
                out: Array) -> None:
    t = kind_of(x, "x", REAL)
    require_levels(levels, width)
    check(out, "out", np.dtype(np.uint8), (x.size * width + 7) // 8)
    groups = _groups(bounds, x.size)
    check(scales, "scales", x.dtype, groups.number)
    given = x, np.int64(x.size), groups.array, np.int64(groups.number), scales, np.int32(levels), np.int32(width)
    launch("quantise", f"pack_levels<{t}>", blocks_for(x.size, CODE_PIECE), *given, *stream(first, key), out)


@on_device
def unpack_levels(packed: Array, bounds: Array, scales: Array, levels: int, width: int, out: Array) -> None:
    t = kind_of(out, "out", REAL)
    require_levels(levels, width)
    check(packed, "packed", np.dtype(np.uint8), (out.size * width + 7) // 8)
    groups = _groups(bounds, out.size)
    check(scales, "scales", out.dtype, groups.number)
    given = packed, groups.array, np.int64(groups.number), scales, np.int32(levels), np.int32(width)
    launch("quantise", f"unpack_levels<{t}>", blocks_for(out.size, CODE_PIECE), *given, np.int64(out.size), out)


def _units(n: int) -> int:
    return blocks_for(-(-n // UNIT))


# ---- multiples of one unit, and powers of two

@on_device
def quantise(x: Array, unit: float, first: int, key: Key | None, codes: Array, largest: float | None = None) -> None:
    require_unit(unit)
    t, c = kind_of(x, "x", REAL), kind_of(codes, "codes", CODE)
    check(codes, "codes", codes.dtype, x.size)
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        inverse = x.dtype.type(1) / x.dtype.type(unit)
    stochastic, numbers = np.int32(key is not None), stream(first, key or Key(0, 0, 0))
    invalid = xp().zeros(1, np.int32) if largest is None else NULL
    arguments = np.int64(x.size), inverse, stochastic, *numbers, codes, invalid
    launch("quantise", f"quantise<{t}, {c}>", _units(x.size), x, *arguments)
    require_codes(_fits(invalid) if largest is None else largest / unit + 1 <= np.iinfo(codes.dtype).max, codes, unit)


def _fits(invalid: Array) -> bool:
    return not int(to_host(invalid)[0])


@on_device
def dequantise(codes: Array, unit: float, out: Array) -> None:
    require_unit(unit)
    t, c = kind_of(out, "out", REAL), kind_of(codes, "codes", CODE)
    check(codes, "codes", codes.dtype, out.size)
    with np.errstate(over="ignore", under="ignore"):
        factor = out.dtype.type(unit)
    launch("quantise", f"dequantise<{t}, {c}>", _units(out.size), codes, np.int64(out.size), factor, out)


@on_device
def pack_natural(x: Array, top: int, first: int, key: Key, out: Array) -> None:
    require_top(top, x)
    check(out, "out", np.dtype(np.uint8), x.size)
    invalid = xp().zeros(1, np.int32)
    _pack_natural(x, top, NULL, NULL, first, key, out, invalid)
    require_magnitudes(_fits(invalid), top)


@on_device
def unpack_natural(packed: Array, top: int, out: Array) -> None:
    require_top(top, out)
    check(packed, "packed", np.dtype(np.uint8), out.size)
    _unpack_natural(packed, top, NULL, out)


@on_device
def encode_natural(x: Array, bounds: Array, first: int, key: Key, message: Array) -> None:
    kind_of(x, "x", REAL)
    head, codes = _head_and_codes(message, x.size)
    largest = xp().empty(1, x.dtype)
    group_norms(x, bounds, "max", largest)
    _pack_natural(x, 0, largest, head, first, key, codes, NULL)


@on_device
def decode_natural(message: Array, out: Array, known: bool = False) -> None:
    head, codes = _head_and_codes(message, out.size)
    top = NOT_FINITE if known else int(to_host(head)[0])
    if top != NOT_FINITE:
        require_top(top, out)
    _unpack_natural(codes, 0, head, out)


def _head_and_codes(message: Array, n: int) -> tuple[Array, Array]:
    check(message, "message", np.dtype(np.uint8), HEAD.itemsize + n)
    return message[: HEAD.itemsize].view(HEAD), message[HEAD.itemsize :]


def _pack_natural(x: Array, top: int, largest: Array, head: Array, first: int, key: Key, out: Array, invalid: Array
                  ) -> None:
    t = kind_of(x, "x", REAL)
    arguments = np.int64(x.size), np.int32(top), largest, head, *stream(first, key), out, invalid
    launch("quantise", f"pack_natural<{t}>", max(1, _units(x.size)), x, *arguments)  # the head is written of none, too


def _unpack_natural(packed: Array, top: int, head: Array, out: Array) -> None:
    t = kind_of(out, "out", REAL)
    arguments = packed, np.int32(top), head, np.int64(out.size), out
    launch("quantise", f"unpack_natural<{t}>", _units(out.size), *arguments)
