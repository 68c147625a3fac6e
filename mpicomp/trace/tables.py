"""Tables as columns of equal length, and the grouping of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Table = dict[str, np.ndarray]  # a name and an array for each column
Result = dict[str, Any]  # of an analysis: plain values, which JSON can hold, and tables


def blocks(*keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows ordered so that equal combinations of keys stand together, and where each block of them starts.

    ``np.add.reduceat(values[order], starts)`` is then the sum of each block; blocks are in ascending order of keys.
    """
    order = np.lexsort(keys[::-1])
    if not len(order):
        return order, order
    changes = [np.asarray(key)[order][1:] != np.asarray(key)[order][:-1] for key in keys]
    return order, np.concatenate([[0], np.flatnonzero(np.any(changes, axis=0)) + 1])


def outermost(rank: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Of events in the order of ranks and of their beginnings: those that no earlier one of their rank encloses."""
    result = np.ones(len(end), bool)
    result[1:] = (rank[1:] != rank[:-1]) | (end[1:] > np.maximum.accumulate(end)[:-1])
    return result


def of_rows(rows: Sequence[Mapping[str, object]]) -> Table:
    """The columns of rows that have the same names; no columns without rows."""
    return {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {}


def groups(*keys: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """For each distinct combination of keys, in ascending order: its values and the rows that have it."""
    order, starts = blocks(*keys)
    for rows in np.split(order, starts[1:]) if len(order) else []:
        yield tuple(int(key[rows[0]]) for key in keys), rows


def ordinal(key: np.ndarray) -> np.ndarray:
    """For each row, how many rows before it have the same key."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = np.searchsorted(ordered, ordered, side="left")
    result = np.empty(len(key), np.uint64)
    result[order] = np.arange(len(key)) - first
    return result


def size_bin(nbytes: np.ndarray) -> np.ndarray:
    """Sizes rounded up to a power of two; 0 stays 0."""
    exponent = np.ceil(np.log2(np.maximum(nbytes, 1).astype(np.float64))).astype(np.uint64)
    return np.where(nbytes == 0, np.uint64(0), np.left_shift(np.uint64(1), exponent))
