"""Lists of index and value pairs: chosen, added up, cut to the largest, written as messages; and who sent what.

Where the codec narrows, every list that travels is rounded first, so that a receiver reads what its sender holds.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..errors import CorruptMessage
from ..values import Array, Compensated, Sent
from . import _checked

BYTE = np.dtype(np.uint8)


class Pairs(NamedTuple):
    """Values at ascending indices of the whole vector."""

    indices: Array
    values: Array

    @property
    def size(self) -> int:
        return self.indices.size

    def at(self, positions: Array | slice, step: Any) -> Pairs:
        """The pairs at some ascending positions of the list; fresh arrays where ``positions`` is one."""
        return Pairs(step.ops.vouch(self.indices[positions], step.n, self.indices), self.values[positions])


def choose(workers: list[Compensated], step: Any) -> tuple[list[Pairs], list[int]]:
    """Each worker's pairs where the selector chooses, and how many non-finite values show."""
    lists, seen = [], []
    for u in workers:
        indices = step.selector.expand(step.selector.select(u, step), step)
        values, found = step.read(u, indices)
        lists.append(Pairs(indices, values))
        seen.append(found)
    return lists, seen


def count_nonfinite(workers: list[Compensated], lists: list[Pairs], show: bool, step: Any) -> list[int]:
    """How many non-finite values each worker has: in its list where all of them ``show`` there."""
    seen = [one.values if show else u.gradient for u, one in zip(workers, lists, strict=True)]
    return [step.ops.count_nonfinite(values)[0] for values in seen]


def add(lists: list[Pairs], step: Any) -> Pairs:
    """The sum: every index of any list once, values added in the order of the lists."""
    if len(lists) == 1:
        return lists[0]
    union = step.ops.union([one.indices for one in lists], step.n)
    total = step.ops.zeros(union.size, step.dtype)
    for one in lists:
        step.ops.scatter_add(total, step.ops.places_in(union, one.indices), one.values)
    return Pairs(union, total)


def by_span(pairs: Pairs, step: Any) -> list[tuple[int, int]]:
    """Where in a list the part of each span begins and ends."""
    ends = step.ops.positions_of(pairs.indices, [stop for _, stop in step.spans])
    return list(pairwise([0, *ends]))


def largest(pairs: Pairs, counts: list[int], step: Any) -> Array | None:
    """Where in a list the ``counts`` largest of each span stand, ascending; None: nowhere are there more."""
    parts = by_span(pairs, step)
    there = [stop - start for start, stop in parts]
    wanted = [min(both) for both in zip(counts, there, strict=True)]
    return None if wanted == there else step.ops.top_k_spans(None, pairs.values, parts, wanted)


def narrows(step: Any) -> bool:
    """Whether a value may change on the wire."""
    return step.codec.may_overflow(step.dtype)


def rounded(pairs: Pairs, step: Any) -> Pairs:
    """The list as its receivers read it."""
    if not narrows(step):
        return pairs
    place = step.place(0, pairs.indices)
    return pairs._replace(values=step.codec.decode(step.codec.encode(pairs.values, place, step), place, step))


def pair_bytes(step: Any) -> int:
    """Bytes of one pair on the wire."""
    return step.ops.index_dtype(step.n).itemsize + step.codec.dtype(step.dtype).itemsize


def write(pairs: Pairs, step: Any, length: int | None = None) -> Array:
    """A list as bytes: indices, then codes. Filled up to ``length`` pairs by ones at the index n."""
    codes = step.codec.encode(pairs.values, step.place(0, pairs.indices), step)
    missing = 0 if length is None else length - pairs.size
    indices = pairs.indices
    if missing:
        past = step.ops.zeros(missing, indices.dtype)
        past += step.n
        indices = step.ops.concatenate([indices, past], indices.dtype)
        codes = step.ops.concatenate([codes, step.ops.zeros(missing, codes.dtype)], codes.dtype)
    return step.ops.concatenate([indices.view(BYTE), codes.view(BYTE)], BYTE)


def read(message: Array, step: Any, filled: bool = False, check: bool = True) -> Pairs:
    """The inverse of ``write``; ``filled`` says that there may be pairs at the index n, which are left out. Without
    ``check`` indices are still to be examined.

    Raises
    ------
    CorruptMessage
        The bytes are no whole pairs, or indices do not ascend within the vector.
    """
    dtype = step.ops.index_dtype(step.n)
    if message.size % pair_bytes(step):
        raise CorruptMessage(f"a list of pairs takes a multiple of {pair_bytes(step)} bytes, got {message.size}")
    cut = message.size // pair_bytes(step) * dtype.itemsize
    indices = message[:cut].copy().view(dtype)  # copies are aligned for their type
    values = step.codec.decode(message[cut:].copy(), step.place(0, indices), step)
    if not filled:
        return Pairs(_checked.ascending(indices, step) if check else indices, values)
    count = step.ops.filled_length(indices, step.n)
    if count < 0:
        raise CorruptMessage(f"a list of pairs must ascend within [0, {step.n}) and be filled up at its end: another "
                             "rank's message is damaged")
    return Pairs(step.ops.vouch(indices[:count], step.n), values[:count])


class Ledger:
    """Who sent what, once it is known which indices came through.

    A worker sent its own values there. What its rank left out of a sum on the way, cut off or rounded away, was not
    sent: the rank's first worker keeps it. So that over all ranks exactly the final sums were sent.
    """

    def __init__(self, own: list[Pairs]) -> None:
        self._own = own
        self._left: list[Pairs] = []

    def leave(self, total: Pairs, kept: Pairs, positions: Array | None, step: Any) -> None:
        """Of a sum only ``kept`` goes on, its entries at ``positions`` (None: all)."""
        left, minus = total.values.copy(), kept.values.copy()
        step.ops.scale(minus, -1.0)
        step.add_at(left, positions, minus)
        remain = step.ops.threshold(None, left, float(np.finfo(left.dtype).smallest_subnormal))  # all but zeros
        self._left.append(Pairs(total.indices, left).at(remain, step))

    def sent(self, final: Array, step: Any) -> list[Sent]:
        """What each of this rank's workers sent, ``final`` being the indices that came through."""
        sent = [_through(one, final, step) for one in self._own]
        back = [_through(one, final, step) for one in self._left]
        for one in back:
            step.ops.scale(one.values, -1.0)
        sent[0] = add([sent[0], *(one for one in back if one.size)], step)
        return [Sent(*one) for one in sent]


def _through(pairs: Pairs, final: Array, step: Any) -> Pairs:
    return pairs if pairs.indices is final else pairs.at(step.ops.common(pairs.indices, final)[0], step)


def merged(lists: list[Pairs], counts: list[int] | None, ledger: Ledger, step: Any) -> Pairs:
    """The sum of lists, rounded; of each span the ``counts`` largest (None: all). The ledger knows what is left out."""
    total = add(lists, step)
    positions = None if counts is None else largest(total, counts, step)
    if positions is None and not narrows(step):
        return total
    kept = rounded(total if positions is None else total.at(positions, step), step)
    ledger.leave(total, kept, positions, step)
    return kept
