"""Ok-Topk: sparse reduce-scatter over balanced regions, then an all-gather of the largest sums."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from ...errors import CorruptMessage, InvalidArgument
from ...types import Array, Compensated, Exchanged, Mean, Sent
from ..options import Option
from ..wire import index_lists, validation
from ..wire.index_lists import Bounds, Ledger, Pairs

DAMAGED = -1  # announced in the place of a number of pairs


class Balanced:
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
    early = False
    spread = (("local", "anew"), ("global", "anew"), ("bounds", "anew"))  # see mpicomp/checkpoint/redistribute.py

    def __init__(self, period: int) -> None:
        self.period = period
        self._local: np.ndarray | None = None  # (workers, spans): smallest magnitude sent; -1: unknown
        self._global: np.ndarray | None = None  # (spans): smallest magnitude of a sum that survives
        self._bounds: np.ndarray | None = None  # (size-1): where the regions of ranks 1, 2, ... begin; None: unknown

    # -- the local list

    def select(self, workers: list[Compensated], step: Any) -> list[int]:
        self._check_loaded(step)  # here, where all ranks hear of it before anything is sent
        self._counts = step.selector.counts(step)
        shape = len(workers), len(step.spans)
        known = self._known(self._local, shape, step)
        if known is None:
            known = np.full(shape, -1.0)
        chosen = [self._choose(u, lams, step) for u, lams in zip(workers, known, strict=True)]
        self._own, self._next = [one for one, _, _ in chosen], np.array([lams for _, lams, _ in chosen])
        return [found for _, _, found in chosen]

    def _choose(self, u: Compensated, lams: np.ndarray, step: Any) -> tuple[Pairs, list[float], int]:
        """A worker's list, the thresholds by which to choose it next time, and how many non-finite values show."""
        if np.all(lams >= 0):
            indices, passed = step.ops.threshold_spans(*u, step.spans, lams.tolist())
            if _in_band(passed, self._counts):
                values, found = step.read(u, indices)
                return self._cut(Pairs(indices, values), index_lists.bounds(passed), step)[0], lams.tolist(), found
        (own,), (found,) = index_lists.choose([u], step)
        own, parts = self._cut(own, index_lists.by_span(own, step), step)
        return own, _smallest(own, parts, step), found

    def _cut(self, own: Pairs, parts: Bounds, step: Any) -> tuple[Pairs, Bounds]:
        """At most as many of each span as are wanted, and where these begin and end."""
        positions = index_lists.largest(own, parts, self._counts, step)
        if positions is None:
            return own, parts
        return own.at(positions, step), index_lists.bounds(map(min, index_lists.sizes(parts), self._counts))

    def compress(self, workers: list[Compensated], step: Any) -> list[Sent]:
        self._own = [index_lists.rounded(one, step) for one in self._own]
        return []

    # -- the exchange

    def exchange(self, workers: list[Compensated], sent: list[Sent], step: Any) -> Exchanged:
        self._local, ledger = self._next, Ledger(self._own)
        mine = index_lists.merged(self._own, None, ledger, step)
        sums, damage = self._to_owners(mine, self._cut_regions(mine, step), step)
        survivors = self._survivors(sums, step)
        final = self._to_all(index_lists.merged([survivors], None, ledger, step), damage, step)
        bits = 8.0 * index_lists.pair_bytes(step) * sum(one.size for one in self._own) / len(self._own)
        sent = ledger.sent(final.indices, step)
        return Exchanged(Mean(final.indices, step.scale(final.values), step.n), sent, bits)

    def _cut_regions(self, mine: Pairs, step: Any) -> np.ndarray:
        """Where every ``period`` steps the regions begin: on average over ranks, their lists fall apart evenly."""
        size, ops = step.comm.size, step.ops
        known = self._known(self._bounds, (size - 1,), step)
        if known is not None:
            return known
        if mine.size:
            quantiles = ops.from_host(np.arange(1, size) * mine.size // size)
            bounds = np.array(ops.to_host(mine.indices[quantiles]), np.int64)
        else:
            bounds = np.arange(1, size) * step.n // size
        step.comm.allreduce_in_place(bounds, "native")
        self._bounds = bounds // size
        return self._bounds

    def _to_owners(self, mine: Pairs, bounds: np.ndarray, step: Any) -> tuple[Pairs, CorruptMessage | None]:
        """The sums in this rank's region; its own part alone, and why, where another rank's cannot be read."""
        rank, size = step.comm.rank, step.comm.size
        cuts = [0, *step.ops.positions_of(mine.indices, bounds.tolist()), mine.size]
        parts = [mine.at(slice(start, stop), step) for start, stop in pairwise(cuts)]
        theirs = step.comm.swap_lengths([part.size for part in parts])
        validation.counts(theirs, step.n, "pairs")
        after = [(rank + distance) % size for distance in range(1, size)]
        outgoing = {other: index_lists.write(parts[other], step) for other in after if parts[other].size}
        nbytes = index_lists.pair_bytes(step)
        incoming = {other: theirs[other] * nbytes for other in reversed(after) if theirs[other]}
        self._crowded = 2 * sum(theirs) > 3 * mine.size
        received = step.comm.send_and_receive(outgoing, incoming, like=mine.values)
        try:
            others = [index_lists.read(received[other], step, check=False) for other in sorted(received)]
            return index_lists.add([parts[rank], *others], step), None
        except CorruptMessage as error:  # all ranks hear of it when they announce their survivors
            return parts[rank], error

    def _survivors(self, sums: Pairs, step: Any) -> Pairs:
        """Those of this rank's sums that all get, by the known threshold where that lets about k pass."""
        parts = index_lists.by_span(sums, step)
        known = self._known(self._global, (len(parts),), step)
        if known is not None:
            positions, here = _reaching(sums, parts, known, step)
            counts = np.array([*here, *index_lists.sizes(parts), self._crowded], np.int64)
            step.comm.allreduce_in_place(counts, "native")
            passed, there = counts[:-1].reshape(2, -1)
            if counts[-1]:
                self._bounds = None
            if _in_band(passed, np.minimum(self._counts, there)):
                return sums.at(positions, step)
        self._global = self._estimate(sums, parts, step)
        return sums.at(_reaching(sums, parts, self._global, step)[0], step)

    def _estimate(self, sums: Pairs, parts: Bounds, step: Any) -> np.ndarray:
        """The k-th largest magnitude of all owners' sums in each span (0: there are fewer), by bisection of bits."""
        low = np.zeros(len(parts), f"i{step.dtype.itemsize}")
        high = np.full(len(parts), np.inf, step.dtype).view(low.dtype) + 1
        magnitudes = step.ops.sorted_magnitudes(sums.values, parts)
        while np.any(high - low > 1):  # at ``low`` k or more pass, or all there are; at ``high`` fewer
            middle = low + (high - low) // 2
            passed = np.array([some.size - np.searchsorted(some, one) for some, one in
                               zip(magnitudes, middle, strict=True)], np.int64)  # fmt: skip
            step.comm.allreduce_in_place(passed, "native")
            low = np.where(passed >= self._counts, middle, low)
            high = np.where(passed >= self._counts, high, middle)
        return low.view(step.dtype).astype(np.float64)

    def _to_all(self, survivors: Pairs, damage: CorruptMessage | None, step: Any) -> Pairs:
        """All owners' survivors; regions ascend with the rank."""
        nbytes = index_lists.pair_bytes(step)
        counts = step.comm.lengths_of_all(survivors.size if damage is None else DAMAGED)
        if damage is not None:
            raise damage
        if DAMAGED in counts:
            raise CorruptMessage(f"rank {counts.index(DAMAGED)} received pairs of its region that it cannot read: "
                                 "another rank's message is damaged")
        validation.counts(counts, step.n, "pairs")
        lengths = [count * nbytes for count in counts]
        flat, _ = step.comm.gather_to_all(index_lists.write(survivors, step), lengths)
        ends = np.cumsum(lengths).tolist()
        lists = [index_lists.read(flat[start:stop], step, check=False) for start, stop in pairwise([0, *ends])]
        indices = step.ops.concatenate([one.indices for one in lists], survivors.indices.dtype)
        values = step.ops.concatenate([one.values for one in lists], step.dtype)
        return Pairs(validation.ascending(indices, step), values)

    # -- state

    def _known(self, kept: np.ndarray | None, shape: tuple[int, ...], step: Any) -> np.ndarray | None:
        """``kept``, or None where it is to be estimated anew: every ``period`` steps, and where it does not fit.

        The same on all ranks, which estimate together.
        """
        return None if step.number % self.period == 0 or kept is None or kept.shape != shape else kept

    def _check_loaded(self, step: Any) -> None:
        """Refuse thresholds and regions of another shape, which this rank would estimate anew and others would not."""
        sizes = {"global": (self._global, len(step.spans)), "bounds": (self._bounds, step.comm.size - 1)}
        for name, (kept, size) in sizes.items():
            if kept is not None and kept.shape != (size,):
                raise InvalidArgument(f"the saved {name} must have the shape {(size,)}, got {kept.shape}: load a state "
                                      "of as many ranks and of the same arrays, or leave it out on all ranks")

    def state(self, ops: Any) -> dict[str, np.ndarray]:
        state = {"local": self._local, "global": self._global, "bounds": self._bounds}
        return {name: array.copy() for name, array in state.items() if array is not None}

    def load(self, state: dict[str, np.ndarray]) -> None:
        self._local, self._global, self._bounds = (state.get(name) for name in ("local", "global", "bounds"))


def _reaching(sums: Pairs, parts: Bounds, lams: np.ndarray, step: Any) -> tuple[Array, list[int]]:
    """Where the sums are whose magnitude reaches the threshold of their part, and how many each part has."""
    return step.ops.threshold_spans(None, sums.values, parts, lams.tolist())


def _in_band(passed: Iterable[int], counts: Iterable[int]) -> bool:
    """Whether in every span between 2/3 and 3/2 of what is wanted passed."""
    return all(2 * count <= 3 * got and 2 * got <= 3 * count for got, count in zip(passed, counts, strict=True))


def _smallest(own: Pairs, parts: Bounds, step: Any) -> list[float]:
    """The smallest magnitude in each span: what next time's values are to reach; 0 for a span that has none."""
    filled = [(start, stop) for start, stop in parts if start < stop]
    least = iter(step.ops.kth_largest_spans(own.values, filled, index_lists.sizes(filled)))
    return [next(least) if start < stop else 0.0 for start, stop in parts]
