"""Spacing of the indices of a list without elements over the vector: even between knots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Spread(NamedTuple):
    """An ascending list, ``counts[j]`` of whose indices lie below ``places[j]``; between two knots they lie evenly.

    Both are int64 and ascend; the list begins at ``places[0]``, where ``counts`` is 0, and ends below ``places[-1]``.
    """

    places: np.ndarray
    counts: np.ndarray

    @classmethod
    def even(cls, start: int, stop: int, count: int) -> Spread:
        return cls(np.array([start, stop]), np.array([0, count]))

    @property
    def width(self) -> int:
        """Places that its indices were chosen from."""
        return int(self.places[-1] - self.places[0])

    def below(self, bounds: Sequence[int]) -> list[int]:
        """Count the indices below each bound."""
        return between(np.asarray(bounds, np.int64), self.places, self.counts).tolist()

    def at(self, positions: np.ndarray) -> np.ndarray:
        """The indices at some positions of the list."""
        return between(np.asarray(positions, np.int64), self.counts, self.places)

    def cut(self, first: int, last: int) -> Spread:
        """The part of the list from position ``first`` to before ``last``."""
        if len(self.counts) == 2:  # most lists lie evenly, and are cut for every rank
            start, count = int(self.places[0]), max(1, int(self.counts[1]))
            return Spread.even(start + first * self.width // count, start + last * self.width // count, last - first)
        inside = np.flatnonzero((self.counts > first) & (self.counts < last))
        counts = np.array([first, *self.counts[inside], last])
        ends = self.at(counts[[0, -1]])
        return Spread(np.array([ends[0], *self.places[inside], ends[1]]), counts - first)

    def moved(self, by: int) -> Spread:
        return Spread(self.places + by, self.counts)

    def chosen(self, positions: Spread) -> Spread:
        """Return the entries at positions of this list that are themselves so spread."""
        inside = self.counts[(self.counts > positions.places[0]) & (self.counts < positions.places[-1])]
        knots = np.unique(np.concatenate([positions.places, inside]))
        return Spread(self.at(knots), between(knots, positions.places, positions.counts))


def between(x: np.ndarray, known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Linear interpolation in whole numbers, rounded down; beyond the ends as there."""
    x = np.minimum(np.maximum(x, known[0]), known[-1])
    at = np.minimum(np.searchsorted(known, x, "right") - 1, len(known) - 2)
    width = np.maximum(known[at + 1] - known[at], 1)
    return values[at] + (x - known[at]) * (values[at + 1] - values[at]) // width


def joined(spreads: list[Spread | None]) -> Spread | None:
    """Return the spread of lists one after the other; None if one is not known, or they do not ascend."""
    known = [one for one in spreads if one is not None]
    if len(known) < len(spreads) or not known:
        return None
    before = np.cumsum([0, *(one.counts[-1] for one in known)])
    places = np.concatenate([one.places for one in known])
    counts = np.concatenate([one.counts + count for one, count in zip(known, before[:-1], strict=True)])
    return Spread(places, counts) if np.all(places[1:] >= places[:-1]) else None


def union(spreads: list[Spread | None], sizes: list[int], n: int) -> Spread:
    """Return the spread of the union of lists that were chosen independently of each other.

    A list whose spread is not known lies as the first known one does, or evenly over the vector of ``n`` elements.
    """
    model = next((one for one in spreads if one is not None and one.counts[-1]), Spread.even(0, n, 1))
    own = [one or Spread(model.places, model.counts) for one in spreads]
    groups = defaultdict(list)
    for one, size in zip(own, sizes, strict=True):
        groups[id(one.places), id(one.counts), size].append(one)
    places = np.unique(np.concatenate([ones[0].places for ones in groups.values()]))
    widths = np.maximum(np.diff(places), 1)
    missing = np.ones(len(widths))
    for (_, _, size), (one, *others) in groups.items():
        chosen = size / max(1, one.counts[-1]) * np.diff(np.interp(places, one.places, one.counts))
        missing *= np.maximum(1 - chosen / widths, 0) ** (1 + len(others))
    counts = np.rint(np.cumsum([0, *(widths * (1 - missing))])).astype(np.int64)
    return Spread(places, counts)
