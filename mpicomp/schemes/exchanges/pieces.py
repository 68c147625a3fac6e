"""Every rank owns a piece: codes go to their owner, who averages, quantises again, and sends to all."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from ..._util.partition import partition
from ...errors import InvalidArgument
from ...ops.protocol import Ops
from ...types import Array, overlap
from .. import averaging
from ..interfaces import Exchange, StepContext
from ..options import Option
from ..values import Compensated, Everything, Exchanged, Mean, Sent, State
from .hops import Encoder, PieceAverager, Segments, left_out_of, shown_by_mean

NOTHING = -1
# The second memory before anything was sent.
UNUSED: State = {"residual": np.empty(0, np.float32), "start": np.array(NOTHING)}


class PieceCodes(NamedTuple):
    """Message: the codes of all segments."""

    segments: Segments
    encoder: Encoder
    sent: list[Sent]


class Pieces(Exchange[Everything, PieceCodes]):
    """Two hops of codes: 1-bit SGD's exchange, and the two-hop all-reduce of ZeRO++ and EQuARX.

    Schedule: the vector is cut into a piece a rank (empty ones are left out); workers quantise each piece by itself
    and send its code to its owner (all-to-all); the owner decodes, averages in the order of the workers, adds what it
    kept back, quantises again and keeps the error (the second memory); all-gather of these codes. A codec whose
    neighbours are coded by blocks has its pieces sent in segments: while one is averaged, the next is quantised and on
    its way to its owner; while one is decoded, the next is gathered. If the codes show NaN and infinity and nothing is
    kept back, ranks agree between the hops that the mean is finite (16 bytes), and the values are not searched.
    Cost: 2 (p-1)/p C bytes per rank, C those of a code of n values ((w+1) (p-1)/p C with w workers a rank). It does not
    grow with the number of ranks. Where lengths of codes are not known, 8 bytes per message for its length, 8 for that
    of each code in it.
    Restrictions: a selector that takes all; any codec. ``second=no`` loses the owner's error: it is for unbiased
    codecs whose error may be larger than the value (QSGD with few levels), which a memory would let grow.
    Reference: Seide et al., 1-bit stochastic gradient descent, Interspeech 2014, section 3.1; Wang et al., ZeRO++, ICLR
    2024 (qgZ).
    """

    name = "pieces"
    options = (
        Option("second", str, "yes", "whether the owner of a piece keeps the error of its second quantisation",
               choices=("yes", "no")),
    )
    reference = "Seide et al. 2014"
    takes = "all"
    codecs = "any"
    stateful = True
    required_state = ("residual", "start")
    redistribution = (("residual", "cut"), ("start", "cut"))

    def __init__(self, second: str) -> None:
        self.second_memory = self.stateful = second == "yes"
        self._residual: Array | None = None
        self._next: tuple[int, Array] | None = None  # number of a step, which may be refused yet, and what it leaves
        self._start = 0
        self._loaded: State | None = None

    def may_refuse(self, ctx: StepContext) -> bool:
        return shown_by_mean(self.second_memory, ctx) or super().may_refuse(ctx)

    def choose(self, us: list[Compensated], ctx: StepContext) -> Everything:
        if shown_by_mean(self.second_memory, ctx):
            return Everything([0] * len(us))
        # A code whose error may be larger than the value lets this memory grow from step to step.
        grows = ctx.codec.error_factor >= 1
        kept = ctx.overflows(Compensated(None, self._residual)) if grows and self._residual is not None else 0
        return Everything([ctx.overflows(u) + kept for u in us])

    def encode(self, us: list[Compensated], choice: Everything, ctx: StepContext) -> PieceCodes:
        """The codes, if a memory or a scale needs all of them; otherwise each is made just before it leaves."""
        segments = Segments(ctx, us[0].gradient)
        encoder = Encoder(us, segments, ctx)
        averaging.share_scale((encoder.values(segments.place(ctx.first_worker + local, owner, 0))
                               for local in range(len(us)) for owner in segments.owners(0)), ctx)
        sent = [_sent(local, encoder, ctx) if ctx.remembers else Sent(None, u.gradient)  # else not read
                for local, u in enumerate(us)]
        return PieceCodes(segments, encoder, sent)

    def combine(self, message: PieceCodes, ctx: StepContext) -> Exchanged:
        start, stop = message.segments.piece(ctx.comm.rank)
        residual, mean, keeps = self._open(ctx), _room_for_mean(message.encoder.us, ctx), self.second_memory
        hops = PieceAverager(message.segments, message.encoder, residual if keeps else None, keeps, ctx)
        hops.run(mean)
        # A narrow wire may have overflowed: then the step is refused, and this memory stays as it was, too.
        if keeps and not (ctx.codec.may_overflow(ctx.dtype) and ctx.ops.count_nonfinite(mean)[0]):
            misfits = ctx.misfits(mean)
            if misfits is not None:  # this memory keeps what the result cannot hold
                ctx.ops.scatter(mean, misfits.positions, misfits.held)
            ctx.ops.axpby(hops.total, 1.0, hops.total, -1.0, mean[start:stop])
            for part in left_out_of(start, stop, ctx):
                hops.total[part] = residual[part]
            self._next = ctx.number, hops.total
        bits = 8.0 * message.encoder.nbytes / len(message.sent)
        return Exchanged(Mean(None, mean, ctx.n), message.sent, bits)

    # -- the second memory

    def observe(self, mean: Mean, ctx: StepContext) -> None:
        if self._next is not None and self._next[0] == ctx.number:
            self._residual = self._next[1]
        self._next = None

    def state(self, ops: Ops) -> State:
        """Error of this rank's piece, and the piece's first element: NOTHING before the first that was sent."""
        if self._residual is None:
            return self._loaded or dict(UNUSED)
        return {"residual": np.array(ops.to_host(self._residual)), "start": np.array(self._start)}

    def load(self, state: State) -> None:
        kept = {name: state[name] for name in self.required_state if name in state}
        self._residual, self._loaded = None, kept if kept and int(kept["start"]) != NOTHING else None

    def check(self, ctx: StepContext) -> None:
        """Refuse a state of other pieces than this job's."""
        if not self._loaded or self._residual is not None:
            return
        start, stop = _piece(ctx)
        begin, size = int(self._loaded["start"]), self._loaded["residual"].size
        if (begin, size) != (start, stop - start):
            raise InvalidArgument(f"the state must be of the piece [{start}, {stop}), got {size} elements from {begin}"
                                  ": load it with as many ranks as saved it")
        if (dtype := self._loaded["residual"].dtype) != ctx.dtype:
            raise InvalidArgument(f"the saved second memory is {dtype}, the gradients are computed in {ctx.dtype}: "
                                  "go on with gradients of the saved dtype, or begin anew without the state")

    def _open(self, ctx: StepContext) -> Array:
        if self._residual is None:
            start, stop = _piece(ctx)
            self._residual, self._start = ctx.ops.zeros(stop - start, ctx.dtype), start
            if self._loaded:
                self._residual[:] = ctx.ops.from_host(self._loaded["residual"])
            self._loaded = None
        return self._residual


class FirstHop(Pieces):
    """The first of the two hops: a reduce-scatter.

    The values of the mean are those of this rank's piece, in the dtype of computation: nothing is quantised again, and
    no second memory is kept. For a reducer that wants no more; no scheme names it.

    Schedule: that of ``pieces`` up to the owner's mean.
    Cost: (p-1)/p C bytes per rank, C those of a code of n values.
    Restrictions: those of ``pieces``.
    Reference: Wang et al., ZeRO++, ICLR 2024 (qgZ).
    """

    name = "first-hop"

    def __init__(self) -> None:
        super().__init__("no")

    def combine(self, message: PieceCodes, ctx: StepContext) -> Exchanged:
        hops = PieceAverager(message.segments, message.encoder, None, True, ctx)
        hops.add()
        bits = 8.0 * message.encoder.nbytes / len(message.sent)
        return Exchanged(Mean(None, hops.total, ctx.n), message.sent, bits)


def _piece(ctx: StepContext) -> tuple[int, int]:
    counts, displs = partition(ctx.n, ctx.comm.size)
    start = displs[ctx.comm.rank]
    return start, start + counts[ctx.comm.rank]


def _sent(local: int, encoder: Encoder, ctx: StepContext) -> Sent:
    """Values of one worker as receivers read them, decoded at their use."""
    coded = encoder.all_coded(local)
    # Its update is one piece, too; or the second hop has another scale, by which the codec then decodes.
    if ctx.n <= ctx.ops.PIECE or ctx.codec.shares_scale:
        return Sent(None, encoder.decoded(local))
    return Sent(None, partial(encoder.decoded, local), coded)


def _room_for_mean(us: list[Compensated], ctx: StepContext) -> Array:
    """An array for the mean: the gradient's own, a segment of which is done with once it has been averaged."""
    in_place = not ctx.remembers and not ctx.codec.may_overflow(ctx.dtype)
    if in_place and ctx.target is not None and overlap(ctx.target, us[0].gradient):
        return ctx.target
    return averaging.room_for_mean(us, ctx)
