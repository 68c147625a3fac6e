"""All-gather of index and value pairs, in one message per rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import NamedTuple, cast

from ...errors import CorruptMessage
from ...ops.arguments import Coded
from ...types import Array
from .. import averaging
from ..interfaces import Exchange, StepContext
from ..options import Option
from ..values import Compensated, Exchanged, Mean, Place, Sent
from ..wire import index_lists, message_format, validation
from ..wire.index_lists import Pairs

Pair = tuple[Array | None, Array | Coded]  # ascending indices (None: all) and values there


class Chosen(NamedTuple):
    """Choice: each local worker's selection in its compact form, as indices, and the values there."""

    wires: list[Array | None]
    lists: list[Array | None]
    values: list[Array]
    nonfinite: list[int]


class Bundle(NamedTuple):
    """Message: each local worker's part and place; ``room`` returns memory for a dense mean, which few steps need."""

    parts: list[message_format.Part]
    places: list[Place]
    sent: list[Sent]
    room: Callable[[], Array]


class Gather(Exchange[Chosen, Bundle]):
    """Every rank receives every worker's pairs and adds them, worker by worker in rank order.

    Schedule: one all-gather of messages of varying length: a header of 32 bytes per worker, indices, codes. Where the
    messages together would be longer than a dense all-reduce (all ranks see it from the lengths), that is done
    instead (``switch=auto``).
    Cost: a rank receives the pairs of all others, (size-1) k (v + i) bytes: it grows with the number of ranks, and the
    union of the coordinates with it (gradient build-up), until the switch at 2 n v. Memory: all pairs.
    Restrictions: none; codes need not be addable, and may stand for every coordinate.
    Reference: Lin et al., Deep Gradient Compression, ICLR 2018; the switch: Renggli et al., SparCML, SC 2019; cost in
    Li and Hoefler, PPoPP 2022.
    """

    name = "gather"
    options = (
        Option("indices", str, "auto", "how indices are written; auto: the shortest",
               choices=("auto", "plain", "gaps", "bitmap")),
        Option("switch", str, "auto", "go over to a dense all-reduce where pairs would be longer",
               choices=("auto", "never")),
    )
    reference = "Lin et al. 2018; Renggli et al. 2019; Li and Hoefler 2022"
    takes = "any"
    codecs = "any"

    def __init__(self, indices: str, switch: str) -> None:
        self.indices, self.switch = indices, switch

    def choose(self, us: list[Compensated], ctx: StepContext) -> Chosen:
        selections = [ctx.select(u) for u in us]
        both = [ctx.read(u, indices) for u, (_, indices) in zip(us, selections, strict=True)]
        return Chosen([wire for wire, _ in selections], [indices for _, indices in selections],
                      [values for values, _ in both], [found for _, found in both])

    def encode(self, us: list[Compensated], choice: Chosen, ctx: StepContext) -> Bundle:
        places = [ctx.place(worker, indices) for worker, indices in enumerate(choice.lists)]
        codes = averaging.encode_all(choice.values, places, ctx)
        parts = [
            message_format.part(indices, wire if wire is not indices else None, code, values.size, self.indices, ctx)
            for indices, wire, code, values in zip(choice.lists, choice.wires, codes, choice.values, strict=True)
        ]
        if ctx.remembers:
            sent = [_sent(part, place, ctx) for part, place in zip(parts, places, strict=True)]
        else:  # not read
            sent = [Sent(*one) for one in zip(choice.lists, choice.values, strict=True)]
        return Bundle(parts, places, sent, partial(averaging.room_for_mean, us, ctx))

    def combine(self, message: Bundle, ctx: StepContext) -> Exchanged:
        packed = message_format.pack(message.parts, ctx.ops)
        bits = sum(part.bits for part in message.parts) / len(message.parts)
        lengths = ctx.comm.lengths_of_all(packed.size)
        validation.counts(lengths, ctx.workers.most * validation.longest(ctx), "bytes")
        if self.switch == "auto" and sum(lengths) > 2 * ctx.n * ctx.dtype.itemsize:
            return Exchanged(_dense(message, ctx), message.sent, 8.0 * ctx.n * ctx.dtype.itemsize)
        flat, _ = ctx.comm.gather_to_all(packed, lengths)
        return Exchanged(_sum(flat, lengths, message, ctx), message.sent, bits)


def _sent(part: message_format.Part, place: Place, ctx: StepContext) -> Sent:
    """Values of one worker as receivers read them; decoded at their use if every coordinate was sent."""
    decode = partial(ctx.codec.decode, part.codes, place, ctx)
    return Sent(place.indices, decode()) if place.indices is not None else Sent(
        None, decode, [(0, ctx.codec.coded(part.codes, place, ctx))])


def _sum(flat: Array, lengths: list[int], message: Bundle, ctx: StepContext) -> Mean:
    """The mean of all workers' values."""
    pairs = _pairs(flat, lengths, message, ctx)
    if ctx.selector.selects_all:
        room = message.room()
        ctx.ops.coded_mean((values for _, values in pairs), 1.0 / ctx.workers.total, None, room)
        return Mean(None, room, ctx.n)
    lists = [(indices, cast(Array, values)) for indices, values in pairs]
    sparse = [Pairs(indices, values) for indices, values in lists if indices is not None]
    if len(sparse) == len(lists):
        total = index_lists.add(sparse, ctx)
        return Mean(total.indices, ctx.scale(total.values), ctx.n)
    room = message.room()
    room[:] = 0
    for indices, values in lists:
        ctx.add_at(room, indices if indices is None else validation.ascending(indices, ctx), values)
    return Mean(None, ctx.scale(room), ctx.n)


def _pairs(flat: Array, lengths: list[int], message: Bundle, ctx: StepContext) -> Iterator[Pair]:
    """The indices and values of all workers in their order; whether indices ascend is still to be seen."""
    me = ctx.comm.own_message
    messages = {rank: flat[end - length : end]
                for rank, (length, end) in enumerate(zip(lengths, accumulate(lengths), strict=True)) if rank != me}
    heads = message_format.heads(messages, ctx)
    for rank in range(len(lengths)):
        if rank == me:
            yield from _own(message, ctx)
            continue
        theirs = message_format.unpack(messages[rank], heads[rank], ctx)
        for worker, (indices, codes) in enumerate(theirs, ctx.workers.first(rank)):
            yield indices, _read(codes, Place(worker, indices, 0, ctx.n), ctx)


def _own(message: Bundle, ctx: StepContext) -> Iterator[Pair]:
    """The indices and values of this rank's workers."""
    for part, place, sent in zip(message.parts, message.places, message.sent, strict=True):
        if not ctx.remembers:
            yield place.indices, _read(part.codes, place, ctx)
        else:
            yield place.indices, sent.values if sent.indices is not None else sent.span(0, ctx.n)


def _read(codes: Array, place: Place, ctx: StepContext) -> Array | Coded:
    """The values that codes stand for; decoded later, while they are added, if everyone sends everything."""
    if not ctx.selector.selects_all:
        return ctx.codec.decode(codes, place, ctx)
    if place.indices is not None:
        raise CorruptMessage("a message must hold all values, but it came with indices of some")
    return ctx.codec.coded(codes, place, ctx)


def _dense(message: Bundle, ctx: StepContext) -> Mean:
    """The mean by an all-reduce of dense vectors."""
    total = ctx.ops.zeros(ctx.n, ctx.dtype)
    for part, place in zip(message.parts, message.places, strict=True):
        ctx.add_at(total, place.indices, ctx.codec.decode(part.codes, place, ctx))
    ctx.comm.allreduce_in_place(total, ctx.algorithm)
    return Mean(None, ctx.scale(total), ctx.n)
