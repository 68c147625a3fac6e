"""Attribution of time to nested and crossing events: an instant belongs to the open event that began last."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...errors import CorruptFile


class Pieces(NamedTuple):
    """Time of the ranks in which an event is open, cut wherever one begins or ends; by rank and time."""

    event: np.ndarray  # row of the event that owns the time
    begin: np.ndarray
    end: np.ndarray
    mask: np.ndarray  # classes of all events that are open, one bit each

    @property
    def own(self) -> np.ndarray:
        return self.end - self.begin


def cut(rank: np.ndarray, begin: np.ndarray, end: np.ndarray, bits: np.ndarray) -> Pieces:
    """Cut events, in ascending order of rank, into pieces; ``bits`` holds the bit of each event's class.

    Events that last no time, or end before they begin, have no piece. Cost: two sorts, and a pass over the pieces for
    every doubling of the longest event.
    """
    base, span = _origin(rank, begin, end)
    shift = rank.astype(np.int64) * span - base
    event = np.flatnonzero(end > begin)
    b, e = begin[event] + shift[event], end[event] + shift[event]
    order = np.lexsort((event, -e, b))  # of two that begin together the shorter is the inner one
    event, b, e = event[order], b[order], e[order]
    edges = np.sort(np.concatenate([b, e]))
    edges = edges[np.diff(edges, prepend=-1) > 0]  # np.unique hashes, which takes seconds for close numbers
    first, last = np.searchsorted(edges, b), np.searchsorted(edges, e)
    latest = _latest(first, last, max(0, len(edges) - 1))
    held = np.flatnonzero(latest >= 0)
    mask = np.zeros(len(held), np.uint8)
    for bit in np.unique(bits[event]):
        chosen = bits[event] == bit
        opens, closes = (np.bincount(at[chosen], minlength=len(edges)) for at in (first, last))
        mask[np.cumsum(opens - closes)[held] > 0] |= bit
    event = event[latest[held]]
    return Pieces(event, edges[held] - shift[event], edges[held + 1] - shift[event], mask)


def _origin(rank: np.ndarray, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, int]:
    """The first begin of each event's rank, and an upper bound of a rank's recorded time: one axis for all ranks."""
    if not len(rank):
        return begin, 1
    starts = np.flatnonzero(np.diff(rank, prepend=rank[0] - 1))
    first = np.minimum.reduceat(begin, starts)
    last = np.maximum.reduceat(np.maximum(begin, end), starts)
    span = max(int(b) - int(a) for a, b in zip(first, last, strict=True)) + 1
    if span * (int(rank.max()) + 1) >= 1 << 62:
        raise CorruptFile(f"a rank's events span {span / 1e9:.3g} s: these are no times of one run")
    return np.repeat(first, np.diff(np.append(starts, len(rank)))), span


def _latest(first: np.ndarray, last: np.ndarray, n: int) -> np.ndarray:
    """For each of ``n`` cells the greatest i whose interval ``[first[i], last[i])`` holds it, -1 for none.

    An interval is the union of two whose length is the power of two below its own; from the longest of these down,
    each passes its value to its halves.
    """
    result = np.full(n, -1, np.int64)
    level = np.frexp((last - first).astype(np.float64))[1] - 1
    for power in range(int(level.max(initial=-1)), -1, -1):
        chosen = np.flatnonzero(level == power)
        np.maximum.at(result, first[chosen], chosen)
        np.maximum.at(result, last[chosen] - (1 << power), chosen)
        if power:
            half = 1 << (power - 1)
            result[half:] = np.maximum(result[half:], result[:-half].copy())
    return result
