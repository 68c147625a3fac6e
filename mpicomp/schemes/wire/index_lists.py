"""Lists of index and value pairs: chosen, added up, cut to the largest, written as messages; and who sent what.

Where the codec narrows, every list that travels is rounded first, so that a receiver reads what its sender holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from ...errors import CorruptMessage
from ...types import Array
from ..interfaces import StepContext
from ..values import Compensated, Sent
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

    def at(self, positions: Array | slice, ctx: StepContext) -> Pairs:
        """The pairs at some ascending positions of the list; fresh arrays where ``positions`` is one."""
        return Pairs(ctx.ops.vouch(self.indices[positions], ctx.n, self.indices), self.values[positions])


class Lists(NamedTuple):
    """Choice and message of exchanges that add lists: each local worker's own."""

    own: list[Pairs]
    nonfinite: list[int]
    sent: None = None

    def rounded(self, ctx: StepContext) -> Lists:
        """The lists as their receivers read them."""
        return self._replace(own=[rounded(one, ctx) for one in self.own])

    def bits(self, ctx: StepContext) -> float:
        """Bits of one worker's list, mean over this rank's workers."""
        return 8.0 * pair_bytes(ctx) * sum(one.size for one in self.own) / len(self.own)


def choose(us: list[Compensated], ctx: StepContext) -> Lists:
    """Each worker's pairs where the selector chooses."""
    lists, seen = [], []
    for u in us:
        _, indices = ctx.select(u)
        assert indices is not None, "the selector counts"
        values, found = ctx.read(u, indices)
        lists.append(Pairs(indices, values))
        seen.append(found)
    return Lists(lists, seen)


def add(lists: list[Pairs], ctx: StepContext, filled: bool = False) -> Pairs:
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
    with validation.RECEIVED:
        return Pairs(*ctx.ops.add_lists(list(indices), list(values), ctx.n, filled))


def bounds(sizes: Iterable[int]) -> Bounds:
    """Bounds of parts of these sizes, one behind another."""
    return list(pairwise(accumulate(sizes, initial=0)))


def sizes(parts: Bounds) -> list[int]:
    return [stop - start for start, stop in parts]


def by_span(pairs: Pairs, ctx: StepContext) -> Bounds:
    """Bounds of each span's part of a list."""
    ends = ctx.ops.positions_of(pairs.indices, [stop for _, stop in ctx.spans])
    return list(pairwise([0, *ends]))


def largest(pairs: Pairs, parts: Bounds, counts: list[int], ctx: StepContext) -> Array | None:
    """Ascending positions in a list of the ``counts`` largest of each part; None if no part has more."""
    there = sizes(parts)
    wanted = [min(both) for both in zip(counts, there, strict=True)]
    return None if wanted == there else ctx.ops.top_k(None, pairs.values, parts, wanted)


def narrows(ctx: StepContext) -> bool:
    """Return True if a value may change on the wire."""
    return ctx.codec.may_overflow(ctx.dtype)


def rounded(pairs: Pairs, ctx: StepContext) -> Pairs:
    """The list as its receivers read it."""
    if not narrows(ctx):
        return pairs
    place = ctx.place(0, pairs.indices)
    return pairs._replace(values=ctx.codec.decode(ctx.codec.encode(pairs.values, place, ctx), place, ctx))


def pair_bytes(ctx: StepContext) -> int:
    """Bytes of one pair on the wire."""
    return ctx.ops.index_dtype(ctx.n).itemsize + ctx.codec.wire_dtype(ctx.dtype).itemsize


def write(pairs: Pairs, ctx: StepContext, length: int | None = None) -> Array:
    """A list as bytes: indices, then codes. Filled up to ``length`` pairs by ones at the index n."""
    codes = ctx.codec.encode(pairs.values, ctx.place(0, pairs.indices), ctx)
    missing = 0 if length is None else length - pairs.size
    indices = pairs.indices
    if missing:
        past = ctx.ops.zeros(missing, indices.dtype)
        past += ctx.n
        indices = ctx.ops.concatenate([indices, past], indices.dtype)
        codes = ctx.ops.concatenate([codes, ctx.ops.zeros(missing, codes.dtype)], codes.dtype)
    return ctx.ops.concatenate([indices.view(BYTE), codes.view(BYTE)], BYTE)


def unreadable(nbytes: int, ctx: StepContext) -> Array:
    """A message that every reader refuses: negative indices."""
    message = ctx.ops.empty(nbytes, BYTE)
    message[:] = 0xFF
    return message


def read(message: Array, ctx: StepContext, filled: bool = False, check: bool = True) -> Pairs:
    """The inverse of ``write``; ``filled`` says that there may be pairs at the index n, which are left out. Without
    ``check`` indices are still to be examined, and nothing is left out. The result may be the message's own memory.

    Raises
    ------
    CorruptMessage
        The bytes are no whole pairs, or indices do not ascend within the vector.
    """
    dtype = ctx.ops.index_dtype(ctx.n)
    if message.size % pair_bytes(ctx):
        raise CorruptMessage(f"a list of pairs takes a multiple of {pair_bytes(ctx)} bytes, got {message.size}")
    cut = message.size // pair_bytes(ctx) * dtype.itemsize
    indices = validation.aligned(message[:cut], dtype.itemsize).view(dtype)
    codes = validation.aligned(message[cut:], ctx.codec.wire_dtype(ctx.dtype).itemsize)
    values = ctx.codec.decode(codes, ctx.place(0, indices), ctx)
    if not check:
        return Pairs(indices, values)
    if not filled:
        return Pairs(validation.ascending(indices, ctx), values)
    count = ctx.ops.filled_length(indices, ctx.n)
    if count < 0:
        raise CorruptMessage(f"a list of pairs must ascend within [0, {ctx.n}) and be filled up at its end: another "
                             "rank's message is damaged")
    return Pairs(ctx.ops.vouch(indices[:count], ctx.n), values[:count])


class Ledger:
    """Record of what each worker sent, complete as soon as the final indices are known.

    A worker sent its own values there. What its rank left out of a sum on the way, cut off or rounded away, was not
    sent: the rank's first worker keeps it. So that over all ranks exactly the final sums were sent.
    """

    def __init__(self, own: list[Pairs]) -> None:
        self._own = own
        self._left: list[tuple[Pairs, Pairs, Array | None]] = []

    def leave(self, total: Pairs, kept: Pairs, positions: Array | None) -> None:
        """Record that of a sum only ``kept`` goes on, its entries at ``positions`` (None: all)."""
        self._left.append((total, kept, positions))

    def sent(self, final: Pairs, ctx: StepContext) -> list[Sent]:
        """Pairs that each of this rank's workers sent, ``final`` being the sums that came through."""
        if ctx.workers.total == 1:
            return [Sent(*final)]
        # Nothing that the final list was cut from came through, unless it was rounded away.
        left = [_left_out(*one, ctx) for one in self._left if narrows(ctx) or one[1] is not final]
        indices, values = (list(parts) for parts in zip(*self._own, *left, strict=True))
        whole = [False] * len(self._own) + [True] * len(left)
        found = [Pairs(*one) for one in ctx.ops.restrict(indices, values, final.indices, whole)]
        sent = found[: len(self._own)]
        back = [one for one in found[len(self._own) :] if one.size]
        for one in back:
            ctx.ops.scale(one.values, -1.0)
        sent[0] = add([sent[0], *back], ctx)
        return [Sent(*one) for one in sent]


def _left_out(total: Pairs, kept: Pairs, positions: Array | None, ctx: StepContext) -> Pairs:
    """The sum less what was kept of it: zero where that was all."""
    left = total.values.copy()
    if positions is not None and not narrows(ctx):
        ctx.ops.clear(left, positions)
        return Pairs(total.indices, left)
    minus = kept.values.copy()
    ctx.ops.scale(minus, -1.0)
    ctx.add_at(left, positions, minus)
    return Pairs(total.indices, left)


def merged(lists: list[Pairs], counts: list[int] | None, ledger: Ledger, ctx: StepContext, filled: bool = False
           ) -> Pairs:
    """The sum of lists, rounded; of each span the ``counts`` largest (None: all). The ledger knows what is left out."""
    total = add(lists, ctx, filled)
    positions = None if counts is None else largest(total, by_span(total, ctx), counts, ctx)
    if positions is None and not narrows(ctx):
        return total
    kept = rounded(total if positions is None else total.at(positions, ctx), ctx)
    ledger.leave(total, kept, positions)
    return kept
