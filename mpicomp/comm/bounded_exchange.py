"""Choice between error-bounded codes and the exact collective, and the run of either."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from ..allreduce.two_hops import Sizes
from ..ops import Ops, ops_for
from ..ops.device import ready
from ..ops.error_bound import BLOCK, ESCAPED, bounded_capacity, headers_of
from ..types import Array
from .allreduce_call import AVG
from .bounded_call import SCHEDULES, TWO_HOPS, Bound, Call
from .engine import Engine
from .transport import MpiLink

EXACT = "exact"
CODER_BYTES_PER_S = 1.5e9  # values that a rank encodes, adds and decodes per second; conservative
SAMPLES, SAMPLE = 8, 8192  # number and elements of the parts of a vector by which its ratio is estimated
PART = 1 << 17  # elements that stay in a cache between two looks
LEAST_BOUND = 5e-324  # all values but zero escape: the sums are exact but for rounding


@dataclass(frozen=True)
class BoundedStats:
    """Record of a collective with an error bound.

    Attributes
    ----------
    algorithm : str
        ``two_hops`` or ``ring`` if error-bounded codes were exchanged, ``exact`` if the ordinary collective ran.
    reason : str
        Reason for ``exact``; else empty.
    bound : float
        Absolute bound e per contribution; 0 if nothing was rounded to the grid.
    largest_error : float
        Largest possible error of an element, without the rounding to its type: ranks * bound for a sum, else bound.
    ratio : float
        Compression ratio of the streams that this rank encoded and decoded; 1 for ``exact``.
    escaped_blocks : int
        Blocks of 128 elements of this rank's result that travelled as plain values: NaN, infinity, or too large for
        the bound.
    """

    algorithm: str
    reason: str = ""
    bound: float = 0.0
    largest_error: float = 0.0
    ratio: float = 1.0
    escaped_blocks: int = 0

    @property
    def cause(self) -> str:
        """The reason without figures, so that a trace has few names."""
        return self.reason.partition(":")[0]


class Exchange:
    """Runs a call that the ranks have agreed on."""

    def __init__(self, engine: Engine, call: Call, given: Bound) -> None:
        self.engine, self.link, self.call, self.given = engine, engine.link, call, given
        self.algorithm = TWO_HOPS if given.algorithm == "auto" else given.algorithm
        self.forced = given.algorithm != "auto" or engine.link.reproducible  # then bits depend on the data alone

    def run(self) -> BoundedStats:
        call = self.call
        reason = self._reason_before()
        if reason:
            return self._exact(reason)
        source, target = self._hosts()
        terms = self.link.size if call.op else 1
        contribution = self._contribution(source, target)
        bound = self.given.value
        if self.given.relative:
            bound = relative_bound(self.link, contribution, bound)
            if bound == 0:
                if not self.link.reproducible:
                    return self._exact("the field is constant, or its range has no finite part")
                bound = LEAST_BOUND
        if not self.forced:
            ratio, needed = agreed_ratio(self.link, contribution, bound, terms), self._least_ratio()
            if ratio < needed:
                return self._exact(f"the data compress too little: {ratio:.2f} times, {needed:.2f} times would pay")
        codes = BoundedCodes(ops_for(target), target.dtype, bound, terms, self.link.size if call.op == AVG else 1)
        sizes = self._exchange_codes(source, target, codes)
        self._return(target)
        ratio = sizes.values / max(1, sizes.streams)
        return BoundedStats(self.algorithm, "", bound, bound * (terms if call.op == "sum" else 1), ratio, codes.escaped)

    def _reason_before(self) -> str:
        """Return the reason for the exact collective if it does not depend on values; empty if there is none."""
        link, array = self.link, self.call.target.array
        if self.call.elements == 0:
            return "there are no elements"
        if self.forced:
            return ""
        if link.size == 1:
            return "there is one rank"
        if link.one_node:
            return "the ranks share memory"
        if self.call.verb == "Allreduce" and link.rows["cpu"].pick(array.nbytes) == "native":
            return "the vector is short"
        if self._least_ratio() == inf:
            return "the network is as fast as the coder"
        return ""

    def _least_ratio(self) -> float:
        """Return the compression ratio from which on two hops are faster than the exact collective; collective.

        For bandwidth B and coder rate C, n values take n/C + 2 n / (ratio B) instead of 2 n / B. Only an all-reduce
        sends one stream per node; the exact collectives are taken to send the values of all ranks of a node once.
        """
        left = 1 - self.link.bandwidth / (2 * CODER_BYTES_PER_S)
        streams = 1 if self.call.verb == "Allreduce" else self.link.ranks_per_node
        return streams / left if left > 0 else inf

    def _hosts(self) -> tuple[Array | None, Array]:
        """Return source and target in host memory."""
        call = self.call
        if call.target.device is None:
            return None if call.source is None else call.source.array, call.target.array
        stage = self.engine.reduction.stage(call.target.device)
        return None if call.source is None else stage.to_host(call.source.array), stage.to_host(call.target.array)

    def _return(self, target: Array) -> None:
        """Copy a result in host memory to its device."""
        call = self.call
        if call.target.device is not None:
            self.engine.reduction.stage(call.target.device).to_device(call.target.array, target)
            ready(call.target.array)

    def _contribution(self, source: Array | None, target: Array) -> Array | None:
        """Return the values of this rank that enter the result."""
        return target if source is None and self.call.op else source

    def _exact(self, reason: str) -> BoundedStats:
        """Run the exact collective."""
        call = self.call
        if call.verb == "Allreduce":  # on its own device
            call.exact(None, call.target.array)
            ready(call.target.array)
        else:
            source, target = self._hosts()
            call.exact(source, target)
            self._return(target)
        return BoundedStats(EXACT, reason)

    def _exchange_codes(self, source: Array | None, target: Array, codes: BoundedCodes) -> Sizes:
        scratch = self.engine.reduction.scratch_for(codes.ops, np.uint8)
        exchange = SCHEDULES[self.algorithm](self.link, self.call.pieces(source, target), codes, scratch)
        with self.link.break_on_error:
            return exchange.run()


class BoundedCodes:
    """Error-bounded streams of which ``terms`` are added; the result is their sum / ``divisor``."""

    block = BLOCK

    def __init__(self, ops: Ops, dtype: np.dtype, bound: float, terms: int, divisor: int) -> None:
        self.ops, self.dtype, self.bound, self.terms, self.divisor = ops, dtype, bound, terms, divisor
        self.escaped = 0  # blocks of decoded streams

    def capacity(self, n: int) -> int:
        return bounded_capacity(n, self.dtype)

    def encode(self, values: Array, out: Array) -> int:
        return self.ops.encode_bounded(values, self.bound, self.terms, out)[0]

    def sum(self, streams: list[Array], n: int, out: Array) -> int:
        return self.ops.sum_bounded(streams, n, self.dtype, self.bound, out)[0]

    def decode(self, stream: Array, out: Array) -> None:
        self.ops.decode_bounded(stream, self.bound, self.divisor, out)
        self.escaped += self.in_order(stream, out.size)

    def in_order(self, stream: Array, n: int) -> int:
        return int(np.count_nonzero(headers_of(stream, n) == ESCAPED))


def relative_bound(link: MpiLink, x: Array | None, share: float) -> float:
    """Return ``share`` of the range, max - min, of the finite values of all ranks; 0 if there are none (collective)."""
    ends = np.full(2, -inf)
    if x is not None and x.size:
        parts = (x[begin : begin + PART] for begin in range(0, x.size, PART))
        lows, highs = np.array([(part.min(), part.max()) for part in parts]).T
        low, high = float(lows.min()), float(highs.max())
        if not isfinite(low) or not isfinite(high):
            finite = x[np.isfinite(x)]
            low, high = (float(finite.min()), float(finite.max())) if finite.size else (inf, -inf)
        ends[:] = -low, high
    link.check()
    link.native_allreduce(ends, "max")
    low, high = -float(ends[0]), float(ends[1])
    if high <= low:
        return 0.0
    wide = share * (high - low) if isfinite(high - low) else share * high - share * low
    return min(wide, float(np.finfo(np.float64).max))


def agreed_ratio(link: MpiLink, x: Array | None, bound: float, terms: int) -> float:
    """Return the compression ratio of samples of ``x``, the least of all ranks (collective)."""
    thousandths = 1 << 40  # no less than other ranks'
    if x is not None and x.size:
        length = min(x.size, SAMPLE)
        codes, coded = np.empty(bounded_capacity(length, x.dtype), np.uint8), 0
        for index in range(SAMPLES):
            begin = index * (x.size - length) // (SAMPLES - 1)
            coded += ops_for(x).encode_bounded(x[begin : begin + length], bound, terms, codes)[0]
        thousandths = 1000 * SAMPLES * length * x.itemsize // coded
    return link.extremes(thousandths, False)[0] / 1000
