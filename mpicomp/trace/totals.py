"""Durations and byte counts of groups of events, accumulated over the parts of a trace."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from . import tables
from .tables import Table

BYTES = ("nbytes_dense", "nbytes_sent", "nbytes_recv")

Key = tuple[int, ...]


class Totals:
    """Keeps each event's duration (8 bytes), so that percentiles are exact for any number of parts."""

    def __init__(self) -> None:
        self._durations: dict[Key, list[np.ndarray]] = {}
        self._bytes: dict[Key, list[int]] = {}

    def add(self, by: tuple[str, ...], events: Table) -> None:
        """Add events with their times, byte counts and the columns in ``by`` (``size_bin`` is computed here)."""
        if "size_bin" in by:
            events = {**events, "size_bin": tables.size_bin(events["nbytes_dense"])}
        duration = events["t_end"].astype(np.int64) - events["t_start"].astype(np.int64)
        for key, rows in tables.groups(*(events[name] for name in by)):
            self._durations.setdefault(key, []).append(duration[rows])
            sums = self._bytes.setdefault(key, [0] * len(BYTES))
            for index, name in enumerate(BYTES):
                sums[index] += int(events[name][rows].sum())

    def rows(self) -> Iterator[tuple[Key, np.ndarray, dict[str, int]]]:
        """Each group in ascending order of its key: the durations (ns) of its events, the sums of its bytes."""
        for key in sorted(self._durations):
            yield key, np.concatenate(self._durations[key]), dict(zip(BYTES, self._bytes[key], strict=True))
