"""Sum of float32 values that travel in half precision; nothing is written before all ranks know if it is finite.

Schedule      `Narrowed` is `direct` with both conversions on the way, and its hops one after the other. First, a rank
              narrows each segment just before it sends it to the owner of its block, who adds the segments of all ranks
              in float32, in rank order, and narrows the sum. Second, owners send their blocks to all ranks, who
              widen each segment as it comes. Between the hops the ranks agree whether all sums are finite.
              `AtOnce` runs another schedule between a pass that narrows and one that widens.
Cost          That of the schedule on half the bytes. The conversions of `Narrowed` are one pass over the values and one
              over the result, by segments that stay in the cache; `AtOnce` passes over the codes once more.
Restrictions  Those of the schedule; host memory. Scratch: a block and 4 p segments; of `AtOnce`, all codes.
Reference     Micikevicius et al., "Mixed precision training", ICLR 2018.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from .._util.partition import pieces
from ..types import Array
from .direct import Blocks, Summation
from .interfaces import Arithmetic, Link, Scratch
from .segments import ahead, wait_all

PART = 64 << 10  # elements that are checked at once: they stay in the cache

Values = Callable[[int, int], Array]  # of a vector, from an element to another


class InHalf(ABC):
    """One sum in the half precision ``kind``; ``scratch`` gives arrays of uint16."""

    def __init__(self, kind: str, ops: Arithmetic, scratch: Scratch) -> None:
        self.kind, self.ops, self.scratch = kind, ops, scratch

    @abstractmethod
    def add(self, values: Values) -> bool:
        """Add all ranks' ``values``, each asked for once; return True if what this rank knows of the sum is finite."""

    @abstractmethod
    def share(self, out: Array, factor: float) -> None:
        """Write the sum, times ``factor``, into ``out``, where the values may lie."""

    def finite(self, bits: Array) -> bool:
        """Return True if all numbers are finite."""
        wide = self.scratch(bits.size, "float32", slot="total")[: bits.size]
        self.ops.widen(wide, bits, self.kind)
        return not self.ops.count_nonfinite(wide)[0]


class Narrowed(InHalf):
    """By `direct`: ``n`` elements, converted on the way."""

    def __init__(self, link: Link, n: int, kind: str, ops: Arithmetic, scratch: Scratch) -> None:
        super().__init__(kind, ops, scratch)
        self._blocks = blocks = Blocks(link, n, scratch(1))
        self._sums = blocks.own(scratch(blocks.counts[0], slot="block"))

    def add(self, values: Values) -> bool:
        blocks, slots = self._blocks, self._blocks.slots(self.scratch, "narrowed")
        summation = Summation("sum", self.ops, self.scratch, self.kind, 1.0)
        all_finite = True

        def narrowed(block: int, index: int) -> Array:
            bits = slots(block, block, index)
            self.ops.narrow(bits, values(*blocks.span(block, index)), self.kind)
            return bits

        def check(total: Array) -> None:
            nonlocal all_finite
            all_finite = all_finite and self.finite(total)

        blocks.combine(summation, self.scratch, narrowed, self._sums, check)
        return all_finite

    def share(self, out: Array, factor: float) -> None:
        blocks, slots = self._blocks, self._blocks.slots(self.scratch)
        result, rank = blocks.of(out), blocks.link.rank

        def start(index: int) -> list[object]:
            return blocks.share(index, self._sums, lambda peer, at: slots(peer, peer, at))

        for index, requests in ahead(start, blocks.indices, blocks.window - 1):
            self.ops.widen(result(rank, index), self._sums(rank, index), self.kind, factor)
            wait_all(blocks.link, requests)
            for peer in blocks.peers:
                self.ops.widen(result(peer, index), slots(peer, peer, index), self.kind, factor)


class AtOnce(InHalf):
    """By a ``reduce`` of another schedule, which replaces ``n`` codes by their sum over all ranks."""

    def __init__(self, n: int, kind: str, ops: Arithmetic, scratch: Scratch, reduce: Callable[[Array], None]) -> None:
        super().__init__(kind, ops, scratch)
        self._bits, self._reduce = scratch(n, slot="block")[:n], reduce

    def add(self, values: Values) -> bool:
        bits = self._bits
        self.ops.narrow(bits, values(0, bits.size), self.kind)
        self._reduce(bits)
        return all(self.finite(bits[begin:end]) for begin, end in pieces(0, bits.size, PART))

    def share(self, out: Array, factor: float) -> None:
        for begin, end in pieces(0, out.size, PART):
            self.ops.widen(out[begin:end], self._bits[begin:end], self.kind, factor)


def in_half(link: Link, n: int, kind: str, schedule: str, ops: Arithmetic, scratch: Scratch,
            reduce: Callable[[Array], None]) -> InHalf:
    """Return a sum by ``schedule``, which ``reduce`` runs on codes."""
    if schedule == "direct" and link.size > 1 and n:
        return Narrowed(link, n, kind, ops, scratch)
    return AtOnce(n, kind, ops, scratch, reduce)
