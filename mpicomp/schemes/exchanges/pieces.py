"""Every rank owns a piece: codes go to their owner, who averages, quantises again, and sends to all."""

from __future__ import annotations

from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import numpy as np

from ..._util.partition import partition
from ...errors import CorruptMessage, InvalidArgument
from ...ops.arguments import Coded
from ...ops.protocol import Ops
from ...types import Array
from .. import averaging
from ..interfaces import Exchange, StepContext
from ..options import Option
from ..values import Compensated, Everything, Exchanged, Mean, Place, Sent, State
from ..wire import validation

BYTE = np.dtype(np.uint8)
NOTHING = -1
# The second memory before anything was sent.
UNUSED: State = {"residual": np.empty(0, np.float32), "start": np.array(NOTHING)}


class PieceCodes(NamedTuple):
    """Message: the codes of every piece, worker by worker; room for the mean."""

    codes: list[Array]
    sent: list[Sent]
    room: Array


class Pieces(Exchange[Everything, PieceCodes]):
    """1-bit SGD's exchange: quantised on the way to the owner of a piece, and again on the way back.

    Schedule: the vector is cut into a piece a rank (empty ones are left out); workers quantise each piece by itself
    and send its code to its owner (all-to-all); the owner decodes, averages in the order of the workers, adds what it
    kept back, quantises again and keeps the error (the second memory); all-gather of these codes.
    Cost: 2 (p-1)/p C bytes per rank, C those of a code of n values ((w+1) (p-1)/p C with w workers a rank), and 8 bytes
    a message for its length, 8 for that of each code in it. It does not grow with the number of ranks.
    Restrictions: a selector that takes all; any codec. ``second=no`` loses the owner's error: it is for unbiased
    codecs whose error may be larger than the value (QSGD with few levels), which a memory would let grow.
    Reference: Seide et al., 1-bit stochastic gradient descent, Interspeech 2014, section 3.1.
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
        self.second_memory = second == "yes"
        self._residual: Array | None = None
        self._start = 0
        self._loaded: State | None = None

    def choose(self, us: list[Compensated], ctx: StepContext) -> Everything:
        # A code whose error may be larger than the value lets this memory grow from step to step.
        grows = ctx.codec.error_factor >= 1
        kept = ctx.overflows(Compensated(None, self._residual)) if grows and self._residual is not None else 0
        return Everything([ctx.overflows(u) + kept for u in us])

    def encode(self, us: list[Compensated], choice: Everything, ctx: StepContext) -> PieceCodes:
        vectors = [u.gradient if u.memory is None else ctx.whole(u, f"pieces-{local}") for local, u in enumerate(us)]
        places = [Place(ctx.first_worker + local, None, start, stop)
                  for local in range(len(us)) for _, start, stop in _cut(ctx)]
        values = [vectors[place.worker - ctx.first_worker][place.start : place.stop] for place in places]
        codes = averaging.encode_all(values, places, ctx)
        both = list(zip(codes, places, strict=True))
        sent = [_sent([one for one in both if one[1].worker == ctx.first_worker + local], ctx) if ctx.remembers
                else Sent(None, vector) for local, vector in enumerate(vectors)]  # else not read
        return PieceCodes(codes, sent, averaging.room_for_mean("pieces-mean", us, ctx))

    def combine(self, message: PieceCodes, ctx: StepContext) -> Exchanged:
        start, stop = _piece(ctx)
        residual = self._open(ctx)
        total = _average(message, residual, ctx)
        left_out = _left_out_of(start, stop, ctx)
        for part in left_out:
            total[part] = 0
        mine = [Place(ctx.workers.total + ctx.comm.rank, None, start, stop)] if total.size else []
        codes = averaging.encode_all([total] * len(mine), mine, ctx)
        mean = _gather(codes, message.room, ctx)
        # A narrow wire may have overflowed: then the step is refused, and this memory stays as it was, too.
        if self.second_memory and not (ctx.codec.may_overflow(ctx.dtype) and ctx.ops.count_nonfinite(mean)[0]):
            misfits = ctx.misfits(mean)
            if misfits is not None:  # this memory keeps what the result cannot hold
                ctx.ops.scatter(mean, misfits.positions, misfits.held)
            kept = [residual[part].copy() for part in left_out]
            ctx.ops.axpby(residual, 1.0, total, -1.0, mean[start:stop])
            for part, values in zip(left_out, kept, strict=True):
                residual[part] = values
        bits = 8.0 * sum(one.nbytes for one in message.codes) / len(message.sent)
        return Exchanged(Mean(None, mean, ctx.n), message.sent, bits)

    # -- the second memory

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


def _piece(ctx: StepContext) -> tuple[int, int]:
    counts, displs = partition(ctx.n, ctx.comm.size)
    start = displs[ctx.comm.rank]
    return start, start + counts[ctx.comm.rank]


def _swap(message: PieceCodes, ctx: StepContext) -> dict[int, Array]:
    """Codes to their owners; the messages with the others' codes of this rank's piece, by rank."""
    me, size = ctx.comm.rank, ctx.comm.size
    owned = _by_owner(message.codes, ctx)
    messages = dict(zip(owned, _pack(list(owned.values()), ctx.ops), strict=True))
    theirs = ctx.comm.swap_lengths([messages[rank].size if rank in messages else 0 for rank in range(size)])
    validation.counts(theirs, ctx.workers.most * validation.longest(ctx), "bytes")
    after = [(me + distance) % size for distance in range(1, size)]  # so that not all send to one rank at once
    outgoing = {rank: messages[rank] for rank in after if rank in messages}
    incoming = {rank: theirs[rank] for rank in reversed(after) if theirs[rank]}
    like = messages.get(me, ctx.ops.empty(0, BYTE))
    return ctx.comm.send_and_receive(outgoing, incoming, like)


def _by_owner(codes: list[Array], ctx: StepContext) -> dict[int, list[Array]]:
    """The codes that each owner of a piece gets, one a worker; this rank's own first."""
    me, pieces = ctx.comm.rank, _cut(ctx)
    by_rank = {rank: codes[at :: len(pieces)] for at, (rank, _, _) in enumerate(pieces)}
    return {me: by_rank[me], **by_rank} if me in by_rank else by_rank


def _sent(codes: list[tuple[Array, Place]], ctx: StepContext) -> Sent:
    """Values of one worker as receivers read them, decoded at their use."""
    def decode() -> Array:
        values = ctx.ops.empty(ctx.n, ctx.dtype)
        for one, place in codes:
            ctx.codec.decode_into(values[place.start : place.stop], one, place, ctx)
        return values

    if ctx.n <= ctx.ops.PIECE:  # its update is one piece, too
        return Sent(None, decode())
    return Sent(None, decode, [(place.start, ctx.codec.coded(one, place, ctx)) for one, place in codes])


def _average(message: PieceCodes, residual: Array, ctx: StepContext) -> Array:
    """The mean of this rank's piece over all workers, added in their order, plus the second memory."""
    messages, (start, stop) = _swap(message, ctx), _piece(ctx)
    total, me = ctx.scratch.array("pieces-total", stop - start, ctx.dtype), ctx.comm.rank
    if not total.size:
        return total
    theirs = _unpack({rank: (one, ctx.workers.on(rank)) for rank, one in messages.items()}, ctx.ops)
    theirs[me] = _by_owner(message.codes, ctx)[me]
    missing = [rank for rank in range(ctx.comm.size) if rank not in theirs]
    if missing:
        raise CorruptMessage(f"rank {missing[0]} sent no codes of the piece [{start}, {stop}) to its owner")
    everyone = chain.from_iterable(enumerate(theirs[rank], ctx.workers.first(rank)) for rank in range(ctx.comm.size))

    def read(worker: int, codes: Array) -> Array | Coded:
        if ctx.remembers and 0 <= worker - ctx.first_worker < len(message.sent):
            return message.sent[worker - ctx.first_worker].span(start, stop)
        return ctx.codec.coded(codes, Place(worker, None, start, stop), ctx)

    ctx.ops.coded_mean((read(*one) for one in everyone), 1.0 / ctx.workers.total, residual, total)
    return total


def _gather(codes: list[Array], mean: Array, ctx: StepContext) -> Array:
    """All owners' codes, decoded into the whole mean."""
    mine = codes[0].view(BYTE) if codes else ctx.ops.empty(0, BYTE)
    flat, lengths = ctx.comm.gather_to_all(mine)
    at = 0
    for rank, start, stop in _cut(ctx):
        place = Place(ctx.workers.total + rank, None, start, stop)
        theirs = codes[0] if rank == ctx.comm.rank else flat[at : at + lengths[rank]].copy()
        ctx.codec.decode_into(mean[start:stop], theirs, place, ctx)
        at += lengths[rank]
    return mean


def _left_out_of(start: int, stop: int, ctx: StepContext) -> list[slice]:
    """The parts of a piece that take no part in the step."""
    return [slice(max(first, start) - start, min(last, stop) - start) for first, last in ctx.left_out
            if max(first, start) < min(last, stop)]


def _cut(ctx: StepContext) -> list[tuple[int, int, int]]:
    """The rank, start and stop of every piece that is not empty."""
    counts, displs = partition(ctx.n, ctx.comm.size)
    return [(rank, start, start + count) for rank, (count, start) in enumerate(zip(counts, displs, strict=True))
            if count]


def _pack(owned: list[list[Array]], ops: Ops) -> list[Array]:
    """A message to each owner: the length of each worker's code, then the codes. One array holds all of them."""
    lengths = np.array([[one.nbytes for one in codes] for codes in owned], np.int64)
    heads, each = ops.from_host(lengths.ravel().view(BYTE)), 8 * lengths.shape[1]
    arrays = [[heads[at * each : (at + 1) * each], *(one.view(BYTE) for one in codes)]
              for at, codes in enumerate(owned)]
    together, ends = ops.concatenate(list(chain(*arrays)), BYTE), accumulate((each + lengths.sum(axis=1)).tolist())
    return [together[begin:end] for begin, end in pairwise([0, *ends])]


def _unpack(messages: dict[int, tuple[Array, int]], ops: Ops) -> dict[int, list[Array]]:
    """The codes in messages by rank, given with the number of their workers; each in memory of its own, aligned for
    any type.
    """
    codes: dict[int, list[Array]] = {}
    heads = validation.lengths_at_heads(messages, 1, ops)
    for rank, (message, workers) in messages.items():
        at, lengths = 8 * workers, [length for (length,) in heads[rank]]
        if min(lengths) < 0 or at + sum(lengths) != message.size:
            raise CorruptMessage(f"codes of {lengths} bytes do not fit a message of {message.size}")
        ends = accumulate(lengths, initial=at)
        codes[rank] = [message[begin:end].copy() for begin, end in pairwise(ends)]
    return codes
