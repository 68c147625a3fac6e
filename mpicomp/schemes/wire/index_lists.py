"""Lists of index and value pairs: chosen, added up, cut to the largest, written as messages; and who sent what.

Where the codec narrows, every list that travels is rounded first, so that a receiver reads what its sender holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from ...errors import CorruptMessage
from ...types import Array, Compensated, Sent
from . import validation

BYTE = np.dtype(np.uint8)
Bounds = list[tuple[int, int]]  # of the parts of a list that lie in each span


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


def add(lists: list[Pairs], step: Any, filled: bool = False) -> Pairs:
    """The sum: every index of any list once, values added in the order of the lists. Of several, those that came from
    other ranks need not have been examined, and may be ``filled`` up.

    Raises
    ------
    CorruptMessage
        A list does not ascend within the vector.
    """
    if len(lists) == 1:
        return lists[0]
    indices, values = zip(*lists, strict=True)
    with validation.received():
        return Pairs(*step.ops.add_lists(list(indices), list(values), step.n, filled))


def bounds(sizes: Iterable[int]) -> Bounds:
    """Where parts of these sizes begin and end, one behind another."""
    return list(pairwise(accumulate(sizes, initial=0)))


def sizes(parts: Bounds) -> list[int]:
    return [stop - start for start, stop in parts]


def by_span(pairs: Pairs, step: Any) -> Bounds:
    """Where in a list the part of each span begins and ends."""
    ends = step.ops.positions_of(pairs.indices, [stop for _, stop in step.spans])
    return list(pairwise([0, *ends]))


def largest(pairs: Pairs, parts: Bounds, counts: list[int], step: Any) -> Array | None:
    """Where in a list the ``counts`` largest of each part stand, ascending; None: nowhere are there more."""
    there = sizes(parts)
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


def unreadable(nbytes: int, step: Any) -> Array:
    """A message that every reader refuses: negative indices."""
    message = step.ops.empty(nbytes, BYTE)
    message[:] = 0xFF
    return message


def read(message: Array, step: Any, filled: bool = False, check: bool = True) -> Pairs:
    """The inverse of ``write``; ``filled`` says that there may be pairs at the index n, which are left out. Without
    ``check`` indices are still to be examined, and nothing is left out. What is read may be the message's own memory.

    Raises
    ------
    CorruptMessage
        The bytes are no whole pairs, or indices do not ascend within the vector.
    """
    dtype = step.ops.index_dtype(step.n)
    if message.size % pair_bytes(step):
        raise CorruptMessage(f"a list of pairs takes a multiple of {pair_bytes(step)} bytes, got {message.size}")
    cut = message.size // pair_bytes(step) * dtype.itemsize
    indices = validation.aligned(message[:cut], dtype.itemsize).view(dtype)
    codes = validation.aligned(message[cut:], step.codec.dtype(step.dtype).itemsize)
    values = step.codec.decode(codes, step.place(0, indices), step)
    if not check:
        return Pairs(indices, values)
    if not filled:
        return Pairs(validation.ascending(indices, step), values)
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
        self._left: list[tuple[Pairs, Pairs, Array | None]] = []

    def leave(self, total: Pairs, kept: Pairs, positions: Array | None) -> None:
        """Of a sum only ``kept`` goes on, its entries at ``positions`` (None: all)."""
        self._left.append((total, kept, positions))

    def sent(self, final: Array, step: Any) -> list[Sent]:
        """What each of this rank's workers sent, ``final`` being the indices that came through."""
        own = [one for one in self._own if one.indices is not final]
        # Of what is final itself all came through, or all but what was rounded away.
        left = [_left_out(*one, step) for one in self._left if narrows(step) or one[1].indices is not final]
        asked = [*own, *left]
        through: Iterable[Any] = ()
        if asked:
            indices, values = (list(parts) for parts in zip(*asked, strict=True))
            through = step.ops.restrict(indices, values, final, [False] * len(own) + [True] * len(left))
        found = (Pairs(*one) for one in through)
        sent = [one if one.indices is final else next(found) for one in self._own]
        back = [one for one in found if one.size]
        for one in back:
            step.ops.scale(one.values, -1.0)
        sent[0] = add([sent[0], *back], step)
        return [Sent(*one) for one in sent]


def _left_out(total: Pairs, kept: Pairs, positions: Array | None, step: Any) -> Pairs:
    """The sum less what was kept of it: zero where that was all."""
    left = total.values.copy()
    if positions is not None and not narrows(step):
        step.ops.clear(left, positions)
        return Pairs(total.indices, left)
    minus = kept.values.copy()
    step.ops.scale(minus, -1.0)
    step.add_at(left, positions, minus)
    return Pairs(total.indices, left)


def merged(lists: list[Pairs], counts: list[int] | None, ledger: Ledger, step: Any, filled: bool = False) -> Pairs:
    """The sum of lists, rounded; of each span the ``counts`` largest (None: all). The ledger knows what is left out."""
    total = add(lists, step, filled)
    positions = None if counts is None else largest(total, by_span(total, step), counts, step)
    if positions is None and not narrows(step):
        return total
    kept = rounded(total if positions is None else total.at(positions, step), step)
    ledger.leave(total, kept, positions)
    return kept
