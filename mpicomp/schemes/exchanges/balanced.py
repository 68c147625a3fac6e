"""Ok-Topk: sparse reduce-scatter over balanced regions, then an all-gather of the largest sums."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...errors import CorruptMessage, InvalidArgument
from ...ops.protocol import Ops
from ...types import Array
from ..interfaces import Exchange, StepContext
from ..options import Option
from ..values import Compensated, Exchanged, Mean, State
from ..wire import index_lists, validation
from ..wire.index_lists import Bounds, Ledger, Lists, Pairs

DAMAGED = -1  # announced in the place of a number of pairs


class Reaching(NamedTuple):
    """Choice and message: the workers' lists, the target of each span, and the thresholds of the next step."""

    lists: Lists
    counts: list[int]
    thresholds: np.ndarray  # (workers, spans)
    nonfinite: list[int]
    sent: None = None


class Balanced(Exchange[Reaching, Reaching]):
    """Owners of regions add what ranks chose there; sums above a global threshold come back to all.

    Schedule: a worker takes what reaches its threshold, at most its k largest. Pairs go straight to the owner of their
    region (all at once, rank r beginning with r + 1); owners add; sums that reach the global threshold are
    all-gathered. Thresholds are reused: every ``period`` steps, and at once where they let pass less than 2/3 or more
    than 3/2 of k, the local one is taken from the selector's choice, the global one found by bisection (an all-reduce
    of a count for each of its bits). Regions are cut every ``period`` steps at the mean of all ranks' quantiles, and
    in the next step where an owner was sent more than 3/2 of what it chose itself.
    Cost: k pairs (p-1)/p to the owners and as many back, about 4 k (p-1)/p words a rank and at most 6 k (p-1)/p where
    regions are balanced and 3/2 k survive. It does not grow with p.
    Restrictions: keeps what did not survive only with a memory. Workers of a rank add up first; of several, the rank
    sends the union. Of equal sums at the threshold all survive.
    Reference: Li and Hoefler, Near-optimal sparse allreduce for distributed deep learning, PPoPP 2022.
    """

    name = "balanced"
    options = (Option("period", int, 32, "steps after which thresholds and regions are estimated anew", low=1),)
    reference = "Li and Hoefler 2022 (Ok-Topk)"
    takes = "counted"
    codecs = "float"
    stateful = True
    redistribution = (("local", "anew"), ("global", "anew"), ("bounds", "anew"))

    def __init__(self, period: int) -> None:
        self.period = period
        self._local: np.ndarray | None = None  # (workers, spans): smallest magnitude sent; -1: unknown
        self._global: np.ndarray | None = None  # (spans): smallest magnitude of a sum that survives
        self._bounds: np.ndarray | None = None  # (size-1): where the regions of ranks 1, 2, ... begin; None: unknown

    # -- the local list

    def choose(self, us: list[Compensated], ctx: StepContext) -> Reaching:
        counts, shape = ctx.selector.counts(ctx), (len(us), len(ctx.spans))
        known = self._known(self._local, shape, ctx)
        if known is None:
            known = np.full(shape, -1.0)
        chosen = [_choose(u, lams, counts, ctx) for u, lams in zip(us, known, strict=True)]
        lists = Lists([own for own, _, _ in chosen], [found for _, _, found in chosen])
        return Reaching(lists, counts, np.array([lams for _, lams, _ in chosen]), lists.nonfinite)

    def encode(self, us: list[Compensated], choice: Reaching, ctx: StepContext) -> Reaching:
        return choice._replace(lists=choice.lists.rounded(ctx))

    # -- the exchange

    def combine(self, message: Reaching, ctx: StepContext) -> Exchanged:
        lists, counts = message.lists, message.counts
        self._local, ledger = message.thresholds, Ledger(lists.own)
        mine = index_lists.merged(lists.own, None, ledger, ctx)
        sums, crowded, damage = _to_owners(mine, self._cut_regions(mine, ctx), ctx)
        survivors = self._survivors(sums, counts, crowded, ctx)
        final = _to_all(index_lists.merged([survivors], None, ledger, ctx), damage, ctx)
        sent = ledger.sent(final, ctx)
        return Exchanged(Mean(final.indices, ctx.scale(final.values), ctx.n), sent, lists.bits(ctx))

    def _cut_regions(self, mine: Pairs, ctx: StepContext) -> np.ndarray:
        """Begins of the regions: every ``period`` steps cut so that on average ranks' lists fall apart evenly."""
        size, ops = ctx.comm.size, ctx.ops
        known = self._known(self._bounds, (size - 1,), ctx)
        if known is not None:
            return known
        if mine.size:
            quantiles = ops.from_host(np.arange(1, size) * mine.size // size)
            bounds = np.array(ops.to_host(mine.indices[quantiles]), np.int64)
        else:
            bounds = np.arange(1, size) * ctx.n // size
        ctx.comm.allreduce_in_place(bounds, "native")
        self._bounds = bounds // size
        return self._bounds

    def _survivors(self, sums: Pairs, wanted: list[int], crowded: bool, ctx: StepContext) -> Pairs:
        """Those of this rank's sums that all get, by the known threshold where that lets about k pass."""
        parts = index_lists.by_span(sums, ctx)
        known = self._known(self._global, (len(parts),), ctx)
        if known is not None:
            positions, here = _reaching(sums, parts, known, ctx)
            counts = np.array([*here, *index_lists.sizes(parts), crowded], np.int64)
            ctx.comm.allreduce_in_place(counts, "native")
            passed, there = counts[:-1].reshape(2, -1)
            if counts[-1]:
                self._bounds = None
            if _in_band(passed, np.minimum(wanted, there)):
                return sums.at(positions, ctx)
        self._global = _estimate(sums, parts, wanted, ctx)
        return sums.at(_reaching(sums, parts, self._global, ctx)[0], ctx)

    # -- state

    def _known(self, kept: np.ndarray | None, shape: tuple[int, ...], ctx: StepContext) -> np.ndarray | None:
        """``kept``, or None if it must be estimated anew: every ``period`` steps, and if it does not fit.

        The same on all ranks, which estimate together.
        """
        return None if ctx.number % self.period == 0 or kept is None or kept.shape != shape else kept

    def check(self, ctx: StepContext) -> None:
        """Refuse thresholds and regions of another shape, which this rank would estimate anew and others would not."""
        sizes = {"global": (self._global, len(ctx.spans)), "bounds": (self._bounds, ctx.comm.size - 1)}
        for name, (kept, size) in sizes.items():
            if kept is not None and kept.shape != (size,):
                raise InvalidArgument(f"the saved {name} must have the shape {(size,)}, got {kept.shape}: load a state "
                                      "of as many ranks and of the same arrays, or leave it out on all ranks")

    def state(self, ops: Ops) -> State:
        state = {"local": self._local, "global": self._global, "bounds": self._bounds}
        return {name: array.copy() for name, array in state.items() if array is not None}

    def load(self, state: State) -> None:
        self._local, self._global, self._bounds = (state.get(name) for name in ("local", "global", "bounds"))


def _choose(u: Compensated, lams: np.ndarray, counts: list[int], ctx: StepContext) -> tuple[Pairs, list[float], int]:
    """A worker's list, the thresholds by which to choose it next time, and how many non-finite values show."""
    if np.all(lams >= 0):
        indices, passed = ctx.ops.threshold(*u, ctx.spans, lams.tolist())
        if _in_band(passed, counts):
            values, found = ctx.read(u, indices)
            return _cut(Pairs(indices, values), index_lists.bounds(passed), counts, ctx)[0], lams.tolist(), found
    (own,), (found,), _ = index_lists.choose([u], ctx)
    own, parts = _cut(own, index_lists.by_span(own, ctx), counts, ctx)
    return own, _smallest(own, parts, ctx), found


def _cut(own: Pairs, parts: Bounds, counts: list[int], ctx: StepContext) -> tuple[Pairs, Bounds]:
    """At most as many of each span as are wanted, and where these begin and end."""
    positions = index_lists.largest(own, parts, counts, ctx)
    if positions is None:
        return own, parts
    return own.at(positions, ctx), index_lists.bounds(map(min, index_lists.sizes(parts), counts))


def _to_owners(mine: Pairs, bounds: np.ndarray, ctx: StepContext
               ) -> tuple[Pairs, bool, CorruptMessage | None]:
    """The sums in this rank's region, and true if it received far more than its share.

    If another rank's pairs cannot be read: this rank's own part alone, and the error.
    """
    rank, size = ctx.comm.rank, ctx.comm.size
    cuts = [0, *ctx.ops.positions_of(mine.indices, bounds.tolist()), mine.size]
    parts = [mine.at(slice(start, stop), ctx) for start, stop in pairwise(cuts)]
    theirs = ctx.comm.swap_lengths([part.size for part in parts])
    validation.counts(theirs, ctx.n, "pairs")
    after = [(rank + distance) % size for distance in range(1, size)]
    outgoing = {other: index_lists.write(parts[other], ctx) for other in after if parts[other].size}
    nbytes = index_lists.pair_bytes(ctx)
    incoming = {other: theirs[other] * nbytes for other in reversed(after) if theirs[other]}
    crowded = 2 * sum(theirs) > 3 * mine.size
    received = ctx.comm.send_and_receive(outgoing, incoming, like=mine.values)
    try:
        others = [index_lists.read(received[other], ctx, check=False) for other in sorted(received)]
        return index_lists.add([parts[rank], *others], ctx), crowded, None
    except CorruptMessage as error:  # all ranks hear of it when they announce their survivors
        return parts[rank], crowded, error


def _estimate(sums: Pairs, parts: Bounds, wanted: list[int], ctx: StepContext) -> np.ndarray:
    """The k-th largest magnitude of all owners' sums in each span (0: there are fewer), by bisection of bits."""
    low = np.zeros(len(parts), f"i{ctx.dtype.itemsize}")
    high = np.full(len(parts), np.inf, ctx.dtype).view(low.dtype) + 1
    magnitudes = ctx.ops.sorted_magnitudes(sums.values, parts)
    while np.any(high - low > 1):  # at ``low`` k or more pass, or all there are; at ``high`` fewer
        middle = low + (high - low) // 2
        passed = np.array([some.size - np.searchsorted(some, one) for some, one in
                           zip(magnitudes, middle, strict=True)], np.int64)  # fmt: skip
        ctx.comm.allreduce_in_place(passed, "native")
        low = np.where(passed >= wanted, middle, low)
        high = np.where(passed >= wanted, high, middle)
    return low.view(ctx.dtype).astype(np.float64)


def _to_all(survivors: Pairs, damage: CorruptMessage | None, ctx: StepContext) -> Pairs:
    """All owners' survivors; regions ascend with the rank."""
    nbytes = index_lists.pair_bytes(ctx)
    counts = ctx.comm.lengths_of_all(survivors.size if damage is None else DAMAGED)
    if damage is not None:
        raise damage
    if DAMAGED in counts:
        raise CorruptMessage(f"rank {counts.index(DAMAGED)} received pairs of its region that it cannot read: "
                             "another rank's message is damaged")
    validation.counts(counts, ctx.n, "pairs")
    lengths = [count * nbytes for count in counts]
    flat, _ = ctx.comm.gather_to_all(index_lists.write(survivors, ctx), lengths)
    ends = np.cumsum(lengths).tolist()
    lists = [index_lists.read(flat[start:stop], ctx, check=False) for start, stop in pairwise([0, *ends])]
    indices = ctx.ops.concatenate([one.indices for one in lists], survivors.indices.dtype)
    values = ctx.ops.concatenate([one.values for one in lists], ctx.dtype)
    return Pairs(validation.ascending(indices, ctx), values)


def _reaching(sums: Pairs, parts: Bounds, lams: np.ndarray, ctx: StepContext) -> tuple[Array, list[int]]:
    """Positions of the sums that reach the threshold of their part, and their number in each part."""
    return ctx.ops.threshold(None, sums.values, parts, lams.tolist())


def _in_band(passed: Iterable[int], counts: Iterable[int]) -> bool:
    """True if in every span between 2/3 and 3/2 of the target passed."""
    return all(2 * count <= 3 * got and 2 * got <= 3 * count for got, count in zip(passed, counts, strict=True))


def _smallest(own: Pairs, parts: Bounds, ctx: StepContext) -> list[float]:
    """The smallest magnitude in each span: what next time's values are to reach; 0 for a span that has none."""
    filled = [(start, stop) for start, stop in parts if start < stop]
    least = iter(ctx.ops.kth_largest(own.values, filled, index_lists.sizes(filled)))
    return [next(least) if start < stop else 0.0 for start, stop in parts]
