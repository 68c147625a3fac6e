"""Whose time is it? Events of a rank nest (a broadcast in a compression) and, where a rank does two things at once,
cross. An instant belongs to the event that began last of those still open, so that times add up."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from ...errors import CorruptFile


class Pieces(NamedTuple):
    """Events cut where they cross, so that pieces of one rank are either apart or one inside the other."""

    event: np.ndarray  # row of the event that a piece is of
    begin: np.ndarray
    end: np.ndarray
    own: np.ndarray  # ns of the piece in which no other event, begun later, was open
    depth: np.ndarray  # pieces around it
    around: np.ndarray  # classes of all pieces around it, one bit each
    mask: np.ndarray  # the same with its own
    whole: np.ndarray  # whether the piece is all of its event


def nest(rank: np.ndarray, begin: np.ndarray, end: np.ndarray, bits: np.ndarray) -> Pieces:
    """Pieces of events that stand in ascending order of rank; ``bits`` holds the bit of each event's class.

    Events that last no time, or end before they begin, have no piece. Cost: a few sorts for every level of crossing.
    """
    base, span = _origin(rank, begin, end)
    shift = rank.astype(np.int64) * span - base
    event = np.flatnonzero(end > begin)
    b, e = begin[event] + shift[event], end[event] + shift[event]
    while True:
        order = np.lexsort((event, -e, b))
        event, b, e = event[order], b[order], e[order]
        depth, parent = _parents(b, e)
        inside = np.flatnonzero(parent >= 0)
        crossing = inside[e[inside] > e[parent[inside]]]
        if not len(crossing):
            break
        cut = e[parent[crossing]]
        event, b, tail = np.append(event, event[crossing]), np.append(b, cut), e[crossing]
        e[crossing] = cut
        e = np.append(e, tail)
    own = e - b
    covered = np.bincount(parent[inside], weights=own[inside], minlength=len(own))
    counts = np.bincount(event, minlength=len(rank))
    around, mask = _inherited(bits[event], parent, depth)
    return Pieces(
        event=event,
        begin=b - shift[event],
        end=e - shift[event],
        own=own - covered.astype(np.int64),
        depth=depth,
        around=around,
        mask=mask,
        whole=counts[event] == 1,
    )


def _origin(rank: np.ndarray, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, int]:
    """The first begin of each event's rank, and more than the longest time a rank recorded: one axis for all ranks."""
    if not len(rank):
        return begin, 1
    starts = np.flatnonzero(np.diff(rank, prepend=rank[0] - 1))
    first = np.minimum.reduceat(begin, starts)
    last = np.maximum.reduceat(np.maximum(begin, end), starts)
    span = max(int(b) - int(a) for a, b in zip(first, last, strict=True)) + 1
    if span * (int(rank.max()) + 1) >= 1 << 62:
        raise CorruptFile(f"a rank's events span {span / 1e9:.3g} s: these are no times of one run")
    return np.repeat(first, np.diff(np.append(starts, len(rank)))), span


def _parents(b: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many pieces are open where each begins, and the last begun of them (-1: none)."""
    row = np.arange(len(b))
    depth = row - np.searchsorted(np.sort(e), b, side="right")
    level = depth * np.int64(len(b) + 1) + row
    order = np.argsort(level, kind="stable")
    before = np.searchsorted(level[order], level - (len(b) + 1)) - 1
    parent = np.where((depth > 0) & (before >= 0), order[np.maximum(before, 0)], -1) if len(b) else row
    # While some pieces still cross, the count of open ones may point at one that is closed already.
    return depth, np.where((parent >= 0) & (e[parent] > b), parent, -1)


def _inherited(bits: np.ndarray, parent: np.ndarray, depth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bits of all around each piece, and these with its own: handed down level by level."""
    around, mask = np.zeros_like(bits), bits.copy()
    order = np.argsort(depth, kind="stable")
    levels = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 2))
    for first, last in itertools.pairwise(levels):
        rows = order[first:last]
        around[rows] = mask[parent[rows]]
        mask[rows] |= around[rows]
    return around, mask
