"""Launchers of what writes few bits a value; see :mod:`..reference.quantise`.

Four neighbours a thread, or a byte of eight bits; norms take a few threads a short group, and a block a piece of a long
one. Refusing bounds, or values that do not fit, waits for the device.
"""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from ..cuda_runtime import (
    CODE,
    GROUP_PIECE,
    REAL,
    TEAM_MOST,
    THREADS,
    WARP,
    Array,
    blocks_for,
    launch,
    on_device,
    to_host,
    xp,
)
from ..reference.quantise import NORMS, require_levels, require_top, require_unit
from ..reference.random import Key
from .arguments import bits_dtype, check, kind_of
from .random import stream

TERM = {"l2": "Square", "mean": "Magnitude"}
UNIT = 4  # `unit` in quantise.cu
CODE_PIECE = 4096  # `code_piece` there


# ---- one number a group

@on_device
def group_norms(x: Array, bounds: Array, kind: str, out: Array) -> None:
    t, groups = kind_of(x, "x", REAL), _groups(bounds, x.size)
    check(out, "out", x.dtype, groups)
    if kind not in NORMS:
        raise InvalidArgument(f"kind must be one of {', '.join(NORMS)}, got {kind}")
    if kind == "max":
        out[:] = _maxima(x, t, bounds).view(x.dtype)
        return
    (totals,) = _sums(x, f"{t}, {TERM[kind]}", bounds, 1)
    out[:] = xp().sqrt(totals) if kind == "l2" else totals / xp().maximum(xp().diff(bounds), 1)


@on_device
def group_means(x: Array, bounds: Array, negative: Array, positive: Array) -> None:
    t, groups = kind_of(x, "x", REAL), _groups(bounds, x.size)
    check(negative, "negative", x.dtype, groups)
    check(positive, "positive", x.dtype, groups)
    below, above, negatives = _sums(x, f"{t}, Signs", bounds, 3)
    negative[:] = below / xp().maximum(negatives, 1)
    positive[:] = above / xp().maximum(xp().diff(bounds) - negatives, 1)


def _groups(bounds: Array, n: int) -> int:
    """How many groups; refuses bounds that do not cut all of ``[0, n)``."""
    check(bounds, "bounds", np.dtype(np.int64))
    groups: int = bounds.size - 1
    invalid = xp().zeros(1, np.int32)
    if groups >= 0:
        launch("norms", "check_bounds", blocks_for(groups + 1), bounds, np.int64(groups), np.int64(n), invalid)
    if groups < 0 or int(to_host(invalid)[0]):
        raise InvalidArgument(f"bounds must ascend from 0 to {n}")
    return groups


class _Teams:
    """Who sums which group, worked out without waiting for the device; see norms.cu.

    A team has a thread for every 4 to 8 elements of the mean group, at most a warp. Groups of over TEAM_MOST elements a
    thread are long: blocks take them, piece by piece, and where the mean group is, a block also adds up its pieces.
    """

    def __init__(self, bounds: Array, n: int) -> None:
        groups = bounds.size - 1
        mean, most = n // max(groups, 1), WARP * TEAM_MOST  # what a warp takes alone
        self.team = THREADS if mean > most else min(WARP, 1 << (mean // 8).bit_length())
        self.blocks = blocks_for(groups, THREADS // self.team)
        longest = min(self.team, WARP) * TEAM_MOST  # of the short groups
        self.pieces = n // GROUP_PIECE + min(groups, n // (longest + 1))  # there are no more, and mostly fewer
        self.piece_blocks = blocks_for(min(self.pieces, n // most + 1), 1)
        counts = (xp().diff(bounds) + (GROUP_PIECE - 1 - longest)) // GROUP_PIECE  # 0 for a short group
        self.starts = xp().concatenate([xp().zeros(1, np.int64), xp().cumsum(counts)])


def _sums(x: Array, instance: str, bounds: Array, rows: int) -> Array:
    """``rows`` sums of each group, float64."""
    groups, teams = np.int64(bounds.size - 1), _Teams(bounds, x.size)
    sums, totals = xp().empty(rows * teams.pieces, np.float64), xp().empty(rows * int(groups), np.float64)
    given, pieces = (x, bounds, teams.starts, groups), np.int64(teams.pieces)
    launch("norms", f"sum_pieces<{instance}>", teams.piece_blocks, *given, pieces, sums)
    launch("norms", f"sum_groups<{instance}>", teams.blocks, *given, np.int32(teams.team), pieces, sums, totals)
    return totals.reshape(rows, -1)


def _maxima(x: Array, t: str, bounds: Array) -> Array:
    """The bits of each group's largest magnitude."""
    groups, keys = np.int64(bounds.size - 1), xp().zeros(bounds.size - 1, bits_dtype(x))
    teams = _Teams(bounds, x.size)
    blocks = max(teams.blocks, teams.piece_blocks)
    launch("norms", f"group_maxima<{t}>", blocks, x, bounds, teams.starts, groups, np.int32(teams.team), keys)
    return keys


# ---- one bit an entry

@on_device
def pack_signs(x: Array, out: Array) -> None:
    t, packed = kind_of(x, "x", REAL), (x.size + 7) // 8
    check(out, "out", np.dtype(np.uint8), packed)
    launch("quantise", f"pack_signs<{t}>", blocks_for(packed), x, np.int64(x.size), out)


@on_device
def unpack_signs(packed: Array, bounds: Array, negative: Array, positive: Array, out: Array) -> None:
    t, nbytes = kind_of(out, "out", REAL), (out.size + 7) // 8
    check(packed, "packed", np.dtype(np.uint8), nbytes)
    groups = _groups(bounds, out.size)
    check(negative, "negative", out.dtype, groups)
    check(positive, "positive", out.dtype, groups)
    arguments = np.int64(groups), negative, positive, np.int64(out.size), out
    launch("quantise", f"unpack_signs<{t}>", blocks_for(out.size, CODE_PIECE), packed, bounds, *arguments)


# ---- levels of a group's scale

@on_device
def pack_levels(x: Array, bounds: Array, scales: Array, levels: int, width: int, first: int, key: Key,
                out: Array) -> None:
    t = kind_of(x, "x", REAL)
    require_levels(levels, width)
    check(out, "out", np.dtype(np.uint8), (x.size * width + 7) // 8)
    groups = _groups(bounds, x.size)
    check(scales, "scales", x.dtype, groups)
    arguments = np.int64(groups), scales, np.int32(levels), np.int32(width), *stream(first, key), out
    launch("quantise", f"pack_levels<{t}>", blocks_for(x.size, CODE_PIECE), x, np.int64(x.size), bounds, *arguments)


@on_device
def unpack_levels(packed: Array, bounds: Array, scales: Array, levels: int, width: int, out: Array) -> None:
    t = kind_of(out, "out", REAL)
    require_levels(levels, width)
    check(packed, "packed", np.dtype(np.uint8), (out.size * width + 7) // 8)
    groups = _groups(bounds, out.size)
    check(scales, "scales", out.dtype, groups)
    arguments = np.int64(groups), scales, np.int32(levels), np.int32(width), np.int64(out.size), out
    launch("quantise", f"unpack_levels<{t}>", blocks_for(out.size, CODE_PIECE), packed, bounds, *arguments)


def _units(n: int) -> int:
    return blocks_for(-(-n // UNIT))


# ---- multiples of one unit, and powers of two

@on_device
def quantise(x: Array, unit: float, first: int, key: Key | None, codes: Array) -> None:
    require_unit(unit)
    t, c = kind_of(x, "x", REAL), kind_of(codes, "codes", CODE)
    check(codes, "codes", codes.dtype, x.size)
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        inverse = x.dtype.type(1) / x.dtype.type(unit)
    stochastic, numbers = np.int32(key is not None), stream(first, key or Key(0, 0, 0))
    invalid = xp().zeros(1, np.int32)
    arguments = np.int64(x.size), inverse, stochastic, *numbers, codes, invalid
    launch("quantise", f"quantise<{t}, {c}>", _units(x.size), x, *arguments)
    if int(to_host(invalid)[0]):
        limit = np.iinfo(codes.dtype).max
        raise InvalidArgument(f"codes must be at most {limit} in magnitude: take a larger unit than {unit}")


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
    t = kind_of(x, "x", REAL)
    require_top(top, x)
    check(out, "out", np.dtype(np.uint8), x.size)
    invalid = xp().zeros(1, np.int32)
    arguments = np.int64(x.size), np.int32(top), *stream(first, key), out, invalid
    launch("quantise", f"pack_natural<{t}>", _units(x.size), x, *arguments)
    if int(to_host(invalid)[0]):
        raise InvalidArgument(f"magnitudes must be at most 2^{top}")


@on_device
def unpack_natural(packed: Array, top: int, out: Array) -> None:
    t = kind_of(out, "out", REAL)
    require_top(top, out)
    check(packed, "packed", np.dtype(np.uint8), out.size)
    launch("quantise", f"unpack_natural<{t}>", _units(out.size), packed, np.int32(top), np.int64(out.size), out)
