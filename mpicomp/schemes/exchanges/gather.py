"""All-gather of index and value pairs, in one message per rank."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from ...types import Array
from .. import averaging
from ..interfaces import Exchange, StepContext
from ..options import Option
from ..values import Compensated, Exchanged, Mean, Place, Sent
from ..wire import index_lists, message_format, validation
from ..wire.index_lists import Pairs

Pair = tuple[Array | None, Array]  # ascending indices (None: all) and values there


class Chosen(NamedTuple):
    """Choice: each local worker's selection in its compact form, as indices, and the values there."""

    wires: list[Array | None]
    lists: list[Array | None]
    values: list[Array]
    nonfinite: list[int]


class Bundle(NamedTuple):
    """Message: each local worker's part and place."""

    parts: list[message_format.Part]
    places: list[Place]
    sent: list[Sent]


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
        read = list(_decoded(parts, places, ctx)) if ctx.remembers else choice.values  # not read
        return Bundle(parts, places, [Sent(*one) for one in zip(choice.lists, read, strict=True)])

    def combine(self, message: Bundle, ctx: StepContext) -> Exchanged:
        packed = message_format.pack(message.parts, ctx.ops)
        bits = sum(part.bits for part in message.parts) / len(message.parts)
        lengths = ctx.comm.lengths_of_all(packed.size)
        validation.counts(lengths, ctx.workers.most * validation.longest(ctx), "bytes")
        values = ((one.values for one in message.sent) if ctx.remembers
                  else _decoded(message.parts, message.places, ctx))
        own = ((place.indices, one) for place, one in zip(message.places, values, strict=True))
        if self.switch == "auto" and sum(lengths) > 2 * ctx.n * ctx.dtype.itemsize:
            return Exchanged(_dense(own, ctx), message.sent, 8.0 * ctx.n * ctx.dtype.itemsize)
        flat, _ = ctx.comm.gather_to_all(packed, lengths)
        return Exchanged(_sum(flat, lengths, own, ctx), message.sent, bits)


def _decoded(parts: list[message_format.Part], places: list[Place], ctx: StepContext) -> Iterator[Array]:
    """Receivers' values of this rank's workers."""
    return (ctx.codec.decode(one.codes, place, ctx) for one, place in zip(parts, places, strict=True))


def _sum(flat: Array, lengths: list[int], own: Iterator[Pair], ctx: StepContext) -> Mean:
    """The mean of all workers' values, this rank's ``own`` being known."""
    pairs = _pairs(flat, lengths, own, ctx)
    if not ctx.selector.selects_all:
        lists = list(pairs)
        sparse = [Pairs(indices, values) for indices, values in lists if indices is not None]
        if len(sparse) == len(lists):
            total = index_lists.add(sparse, ctx)
            return Mean(total.indices, ctx.scale(total.values), ctx.n)
        pairs = iter(lists)
    mean = ctx.scratch.array("gather-mean", ctx.n, ctx.dtype)
    mean[:] = 0
    for indices, values in pairs:
        ctx.add_at(mean, indices if indices is None else validation.ascending(indices, ctx), values)
    return Mean(None, ctx.scale(mean), ctx.n)


def _pairs(flat: Array, lengths: list[int], own: Iterator[Pair], ctx: StepContext) -> Iterator[Pair]:
    """The indices and values of all workers in their order; whether indices ascend is still to be seen."""
    me = ctx.comm.own_message
    messages = {rank: flat[end - length : end]
                for rank, (length, end) in enumerate(zip(lengths, accumulate(lengths), strict=True)) if rank != me}
    heads = message_format.heads(messages, ctx)
    for rank in range(len(lengths)):
        if rank == me:
            yield from own
            continue
        theirs = message_format.unpack(messages[rank], heads[rank], ctx)
        for worker, (indices, codes) in enumerate(theirs, ctx.workers.first(rank)):
            yield indices, ctx.codec.decode(codes, Place(worker, indices, 0, ctx.n), ctx)


def _dense(own: Iterator[Pair], ctx: StepContext) -> Mean:
    """The mean by an all-reduce of dense vectors."""
    total = ctx.ops.zeros(ctx.n, ctx.dtype)
    for indices, values in own:
        ctx.add_at(total, indices, values)
    ctx.comm.allreduce_in_place(total, ctx.algorithm)
    return Mean(None, ctx.scale(total), ctx.n)
