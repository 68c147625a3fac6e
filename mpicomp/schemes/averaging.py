"""Means over all workers of all ranks: of dense vectors, and of codes that may be added."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from .._util.partition import chunk_count, pieces
from ..comm.interfaces import Request
from ..types import Array, overlap
from .interfaces import StepContext
from .values import Compensated, Exchanged, Mean, Place, Sent

# A dense vector goes in equal parts of at most about so many bytes, each an all-reduce of its own: long
# enough for a ring over hosts to be near its best, short enough that copies hide. They begin at multiples of ALIGNED.
BUCKET_BYTES = 16 << 20
ALIGNED = 64
PART = 64 << 10  # elements of a bucket's codes that are decoded at once

Finish = Callable[[], Array]


class Common(NamedTuple):
    """Message of values at coordinates that all workers share: each local worker's codes and their places."""

    codes: list[Array]
    places: list[Place]
    sent: list[Sent]
    leader: int | None = None  # the rank that chose the coordinates, if one did
    more_bits: float = 0.0  # in one worker's message, beside its codes

    def mean(self, ctx: StepContext) -> Exchanged:
        """The mean over all workers (collective)."""
        values = mean_of_codes(self.codes, self.places[0], ctx)
        payload = 8.0 * self.codes[0].nbytes + self.more_bits
        return Exchanged(Mean(self.sent[0].indices, values, ctx.n), self.sent, payload, self.leader)


def encode_common(indices: Array, values: list[Array], ctx: StepContext, leader: int | None = None,
                  more_bits: float = 0.0) -> Common:
    """The message of each local worker's ``values`` at the same ``indices``."""
    places = [ctx.place(worker, indices) for worker in range(len(values))]
    codes = encode_all(values, places, ctx)
    sent = [Sent(indices, ctx.codec.decode(one, place, ctx)) for one, place in zip(codes, places, strict=True)]
    return Common(codes, places, sent, leader, more_bits)


def encode_all(values: list[Array], places: list[Place], ctx: StepContext) -> list[Array]:
    """Each worker's codes, to be added to all others': by one scale if the codec needs that (then collective)."""
    share_scale(values, ctx)
    return [ctx.codec.encode(one, place, ctx) for one, place in zip(values, places, strict=True)]


def share_scale(values: Iterable[Array], ctx: StepContext) -> None:
    """Make the largest magnitude of all ranks' values known to the codec, if it needs one scale (then collective)."""
    codec = ctx.codec
    if codec.shares_scale:
        peak = np.array([max((codec.peak([one], ctx) for one in values), default=0.0)], np.float64)
        ctx.comm.allreduce_in_place(peak, "native", "max")
        codec.share(float(peak[0]), ctx)


def mean_of_codes(codes: list[Array], place: Place, ctx: StepContext, consume: bool = False) -> Array:
    """The mean over all workers of all ranks of equally long vectors of addable codes, one per local worker.

    Added on this rank first: one worker's codes are all-reduced as they are; of several workers' floats the sum
    travels in the dtype of computation, from all ranks if any has several. ``consume`` allows the first array to be
    overwritten and returned.
    """
    ops, codec = ctx.ops, ctx.codec
    coded = ctx.workers.most == 1 or codec.shares_scale
    first, *others = codes if coded else [codec.decode(one, place, ctx) for one in codes]
    wire = first if consume else ops.empty(first.size, first.dtype)
    if ctx.workers.most == 1 and not consume and codec.sends_unchanged(ctx.dtype):
        return start_mean(first, lambda begin, end: wire[begin:end], ctx, target=wire, source=first)()

    def part(begin: int, end: int) -> Array:
        here = wire[begin:end]
        if not consume:
            here[:] = first[begin:end]
        for other in others:
            ops.add(here, other[begin:end])
        return here

    target = wire if wire.dtype == ctx.dtype else None
    return start_mean(first, part, ctx, place if coded else None, target)()


def mean_of_values(values: Array, target: Array, ctx: StepContext) -> Array:
    """The mean over all ranks' ``values``, of one worker each, written into ``target``, which may be these."""
    factor = 1.0 / ctx.workers.total
    if overlap(values, target):
        ctx.comm.allreduce_in_place(target, ctx.algorithm, factor=factor)
    else:
        ctx.comm.allreduce_from(values, target, ctx.algorithm, factor)
    return target


def room_for_mean(us: list[Compensated], ctx: StepContext) -> Array:
    """An array for a dense mean that may be written while ``us`` are still read: the caller's if possible."""
    target = ctx.target
    if target is None or ctx.codec.may_overflow(ctx.dtype) or any(overlap(target, u.gradient) for u in us):
        return ctx.ops.empty(ctx.n, ctx.dtype)
    return target


def start_mean(like: Array, part: Callable[[int, int], Array], ctx: StepContext, place: Place | None = None,
               target: Array | None = None, beside: bool = False, source: Array | None = None) -> Finish:
    """Begin to average a dense vector over all workers, in buckets that are in flight at once (collective).

    While one bucket is on its way, the next is made and the one before is read.

    Parameters
    ----------
    like : array
        As long, and on the same device, as what travels.
    part : function of (begin, end)
        This rank's sum of its workers' elements, which may be overwritten: asked for once, in order.
    place : Place, optional
        Of the whole vector, if codes travel; else values do.
    target : array, optional
        Receives the mean; may be what the parts are views of. Not the caller's if the codes may overflow.
    beside : bool
        Other work follows before the result is needed: then even a short vector is in flight.
    source : array, optional
        One worker's values, which stay: the parts are room for the mean and hold nothing yet. Only without codes.

    Returns
    -------
    A function that gives the mean, to be called once.
    """
    comm, buckets = ctx.comm, cuts(like, ctx)
    kind, started = ctx.codec.kind if place else None, list[tuple[int, Array, Request | None]]()
    plain = place is None or ctx.codec.sends_unchanged(ctx.dtype)
    factor = 1.0 / ctx.workers.total if plain else 1.0  # else codes are decoded first
    if len(buckets) > 1 or beside:
        for begin, end in buckets:
            wire, own = part(begin, end), None if source is None else source[begin:end]
            request = comm.start_allreduce(wire, ctx.algorithm, kind, factor, own)
            started.append((begin, wire, request))
            ctx.in_flight.append(request)

    def finish() -> Array:
        if not started and source is not None:
            return mean_of_values(source, part(0, like.size), ctx)
        if not started:
            wire = part(0, like.size)
            comm.allreduce_in_place(wire, ctx.algorithm, kind=kind, factor=factor)
            if plain:
                return wire
            started.append((0, wire, None))
        mean = ctx.ops.empty(like.size, ctx.dtype) if target is None else target
        narrows = ctx.check_finite and ctx.codec.may_overflow(ctx.dtype)
        for begin, wire, request in started:
            if request is not None:
                land(request, ctx)
            _read(wire, mean, begin, place, ctx, narrows)
        return mean

    return finish


def _read(wire: Array, mean: Array, begin: int, place: Place | None, ctx: StepContext, may_overflow: bool) -> None:
    """Write a bucket's mean; codes, of a ``place``, are decoded, checked and scaled in parts that stay in the cache."""
    mean = mean[begin : begin + wire.size]
    if place is None or ctx.codec.sends_unchanged(ctx.dtype):
        if not overlap(wire, mean):
            mean[:] = wire
        return
    at_once = PART if isinstance(wire, np.ndarray) else max(1, wire.size)  # a device does all at once
    for first, last in pieces(0, wire.size, at_once):
        here = mean[first:last]
        ctx.codec.decode_into(here, wire[first:last], place.part(begin + first, begin + last), ctx)
        if may_overflow:
            ctx.refuse_overflow(here)
        ctx.scale(here)


def cuts(like: Array, ctx: StepContext) -> list[tuple[int, int]]:
    """The begins and ends of the buckets of a dense vector, about equally long, the same on all ranks; only one bucket
    if none can be in flight.
    """
    count = chunk_count(like.size * ctx.dtype.itemsize, BUCKET_BYTES)
    if count < 2 or not ctx.comm.flies:
        return [(0, like.size)]
    length = ALIGNED * chunk_count(like.size, ALIGNED * count)
    return list(pieces(0, like.size, length))


def settle(ctx: StepContext) -> None:
    """Wait for all that is in flight, after an error: the next step uses its memory, and counts its bytes anew."""
    while ctx.in_flight:
        land(ctx.in_flight[0], ctx)


def land(request: Request, ctx: StepContext) -> None:
    """Wait for what is in flight."""
    ctx.in_flight.remove(request)
    ctx.comm.wait_for(request)
