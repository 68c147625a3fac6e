"""Agreeing on coordinates before values are sent, without a leader: from a sum of sketches, or from a seed."""

from __future__ import annotations

from typing import NamedTuple

from ...types import Array
from .. import averaging
from ..interfaces import Exchange, StepContext
from ..values import Compensated, Exchanged


class Sketches(NamedTuple):
    """Choice: each local worker's sketch."""

    sketches: list[Array]
    nonfinite: list[int]


class Agreed(Exchange[Sketches, averaging.Common]):
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

    def encode(self, us: list[Compensated], choice: Sketches, ctx: StepContext) -> averaging.Common:
        indices = ctx.selector.pick(_total(choice.sketches, ctx), ctx)
        return averaging.encode_common(indices, [u.at(indices, ctx.ops) for u in us], ctx,
                                       more_bits=8.0 * choice.sketches[0].nbytes)

    def combine(self, message: averaging.Common, ctx: StepContext) -> Exchanged:
        return message.mean(ctx)


def _total(sketches: list[Array], ctx: StepContext) -> Array:
    """The sum of all workers' sketches, the same bits on every rank."""
    total = sketches[0]
    for other in sketches[1:]:
        ctx.ops.add(total, other)
    if total.size:
        with ctx.timer.phase("sketch"):
            ctx.comm.allreduce_in_place(total, ctx.algorithm)
    return total
