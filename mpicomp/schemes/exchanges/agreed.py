"""Agreeing on coordinates before values are sent, without a leader: from a sum of sketches, or from a seed."""

from __future__ import annotations

from typing import NamedTuple

from ...types import Array
from .. import averaging
from ..interfaces import Exchange, StepContext
from ..values import Compensated, Exchanged, Mean, Place, Sent


class Sketches(NamedTuple):
    """Choice: each local worker's sketch."""

    sketches: list[Array]
    nonfinite: list[int]


class Codes(NamedTuple):
    """Message: each local worker's codes at the common coordinates, and their places; bytes of one worker's sketch."""

    codes: list[Array]
    places: list[Place]
    sent: list[Sent]
    sketch_bytes: int


class Agreed(Exchange[Sketches, Codes]):
    """All ranks work out the same coordinates from the sum of their sketches; values there add up.

    Schedule: one dense all-reduce of the selector's sketches (none if the sketch is empty: then coordinates follow
    from the seed alone), the choice of coordinates on every rank, one dense all-reduce of k values.
    Cost: 2 (size-1)/size * (k codes + one sketch) per rank, sent and received; no indices, and no growth with the
    number of ranks.
    Restrictions: a selector that can be agreed on; codes must be addable. Without a sketch the gradient is read once
    more, to look for non-finite elements.
    Reference: ARC-Top-k, 2025; random-k with a shared seed: Stich et al., NeurIPS 2018.
    """

    name = "agreed"
    options = ()
    reference = "ARC-Top-k, 2025; Stich et al. 2018"
    takes = "agreed"
    codecs = "addable"

    def choose(self, us: list[Compensated], ctx: StepContext) -> Sketches:
        sketches = [ctx.selector.sketch(u, ctx) for u in us]
        return Sketches(sketches, [ctx.overflows(Compensated(None, sketch) if sketch.size else u)
                                   for sketch, u in zip(sketches, us, strict=True)])

    def encode(self, us: list[Compensated], choice: Sketches, ctx: StepContext) -> Codes:
        indices = ctx.selector.pick(_total(choice.sketches, ctx), ctx)
        places = [ctx.place(worker, indices) for worker in range(len(us))]
        codes = averaging.encode_all([u.at(indices, ctx.ops) for u in us], places, ctx)
        sent = [Sent(indices, ctx.codec.decode(one, place, ctx)) for one, place in zip(codes, places, strict=True)]
        return Codes(codes, places, sent, choice.sketches[0].nbytes)

    def combine(self, message: Codes, ctx: StepContext) -> Exchanged:
        indices = message.sent[0].indices
        mean = averaging.mean_of_codes(message.codes, message.places[0], ctx)
        payload = 8.0 * (message.codes[0].nbytes + message.sketch_bytes)
        return Exchanged(Mean(indices, mean, ctx.n), message.sent, payload)


def _total(sketches: list[Array], ctx: StepContext) -> Array:
    """The sum of all workers' sketches, the same bits on every rank."""
    total = sketches[0]
    for other in sketches[1:]:
        ctx.ops.add(total, other)
    if total.size:
        with ctx.timer.phase("sketch"):
            ctx.comm.allreduce_in_place(total, ctx.algorithm)
    return total
