"""The dense exchange: every rank's whole vector, added by an all-reduce."""

from __future__ import annotations

from typing import NamedTuple

from ...ops.device import device_of
from ...types import Array, overlap
from .. import averaging
from ..interfaces import Exchange, StepContext
from ..values import Compensated, Everything, Exchanged, Mean, Place, Sent


class Vectors(NamedTuple):
    """Message: each local worker's codes; None for one worker's ``u`` that is encoded as the exchange goes on."""

    codes: list[Array] | None
    u: Compensated
    sent: list[Sent]


class Dense(Exchange[Everything, Vectors]):
    """All-reduce of the encoded vectors.

    Schedule: a dense all-reduce of n codes, by the reducer's ``algorithm`` (before it one number if the codec's scale
    is shared by all); long vectors in buckets, whose all-reduces are in flight at once. Half precision in host memory
    is converted on the way (`mpicomp.allreduce.narrowed`).
    Cost: 2 (size-1)/size * n codes per rank, sent and received.
    Restrictions: codes must be addable; the selector is not asked; several workers on one rank are added first.
    Reference: see the files of ``mpicomp.allreduce``.
    """

    name = "dense"
    options = ()
    reference = "Patarasuk and Yuan 2009 (ring); Thakur et al. 2005 (halving-doubling)"
    takes = "all"
    codecs = "addable"

    def choose(self, us: list[Compensated], ctx: StepContext) -> Everything:
        if self._sends_values(ctx) and ctx.check_finite and ctx.codec.may_overflow(ctx.dtype):
            return Everything([0] * len(us))  # the sum shows it, which is checked in any case
        return Everything([ctx.overflows(u) for u in us])

    def _sends_values(self, ctx: StepContext) -> bool:
        """True if the values of one worker travel, encoded as the exchange goes on."""
        return ctx.workers.most == 1 and not ctx.remembers and not ctx.codec.shares_scale

    def encode(self, us: list[Compensated], choice: Everything, ctx: StepContext) -> Vectors:
        if self._sends_values(ctx):
            return Vectors(None, us[0], [Sent(None, us[0].gradient)])  # not read
        places = [ctx.place(worker, None) for worker in range(len(us))]
        # Integers of a unit are arrays of their own; other codes may be the values, and are overwritten.
        values = [u.gradient if ctx.codec.shares_scale and u.memory is None else ctx.whole(u) for u in us]
        codes = averaging.encode_all(values, places, ctx)
        if ctx.remembers:
            values = [ctx.codec.decode(one, place, ctx) for one, place in zip(codes, places, strict=True)]
        return Vectors(codes, us[0], [Sent(None, one) for one in values])

    def combine(self, message: Vectors, ctx: StepContext) -> Exchanged:
        place = ctx.place(0, None)
        if message.codes is None:
            mean, nbytes = self._encoded_on_the_way(message.u, place, ctx)
        else:
            mean = averaging.mean_of_codes(message.codes, place, ctx, consume=not ctx.remembers)
            nbytes = message.codes[0].nbytes
        return Exchanged(Mean(None, mean, ctx.n), message.sent, 8.0 * nbytes, finite=message.codes is None)

    def _encoded_on_the_way(self, u: Compensated, place: Place, ctx: StepContext) -> tuple[Array, int]:
        """The mean, and the bytes of this worker's codes: each part is copied and encoded just before it leaves.

        A narrowed vector needs no copy, and neither does a mean that may lie in the gradient's place.
        """
        narrows = ctx.codec.may_overflow(ctx.dtype)
        in_half = ctx.codec.half(ctx.dtype) if narrows and device_of(u.gradient) is None else None
        nbytes = 0
        values = ctx.target
        if values is None or (narrows and not (in_half and u.memory is None)):  # an overflow leaves what was given
            values = ctx.ops.empty(u.n, u.gradient.dtype)
        if u.memory is None and ctx.codec.sends_unchanged(ctx.dtype):
            return averaging.mean_of_values(u.gradient, values, ctx), values.nbytes
        unchanged = u.memory is None and (narrows or overlap(values, u.gradient))

        def own(begin: int, end: int) -> Array:
            here = u.span(begin, end)
            return here.gradient if unchanged else here.copy_to(values[begin:end], ctx.ops)

        if in_half:
            factor = 1.0 / ctx.workers.total
            if not ctx.comm.sum_in_half(own, values, in_half, ctx.algorithm, factor, ctx.check_finite):
                raise ctx.overflow
            return values, ctx.codec.code_nbytes(ctx.n, ctx.dtype)

        def part(begin: int, end: int) -> Array:
            nonlocal nbytes
            codes = ctx.codec.encode(own(begin, end), place.part(begin, end), ctx)
            nbytes += codes.nbytes
            return codes

        return averaging.start_mean(u.gradient, part, ctx, place, values)(), nbytes
