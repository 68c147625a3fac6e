"""ScaleCom's leader exchange: one rank chooses the coordinates, so that values add up position by position."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...types import Array
from .. import averaging
from ..interfaces import Exchange, StepContext
from ..values import Compensated, Exchanged
from ..wire import validation


class Selection(NamedTuple):
    """The leading worker's selection in the selector's compact form, its indices, and its values there."""

    worker: int
    wire: Array
    indices: Array
    values: Array


class Led(NamedTuple):
    """Choice: the rank that leads, and the selection if one of its workers is this rank's."""

    leader: int
    selection: Selection | None
    nonfinite: list[int]


class Leader(Exchange[Led, averaging.Common]):
    """Cyclic local top-k (CLT-k): the leader of step t is worker t mod workers; all send at its coordinates.

    Schedule: the leader selects and broadcasts the selection in the selector's compact form; every worker
    gathers its own values there; one dense all-reduce of k values.
    Cost: 2 (size-1)/size * k values per rank plus one broadcast of the selection, down a tree if it is short: no
    gradient build-up. The leader reads memory and gradient once more than the others, who look for non-finite gradients
    meanwhile.
    Restrictions: any selector; codes must be addable.
    Reference: Chen et al., ScaleCom, NeurIPS 2020, algorithm 1.
    """

    name = "leader"
    options = ()
    reference = "Chen et al. 2020 (ScaleCom)"
    takes = "some"
    codecs = "addable"

    def choose(self, us: list[Compensated], ctx: StepContext) -> Led:
        leader, local = ctx.workers.owner(ctx.number % ctx.workers.total)
        lead = local if ctx.comm.rank == leader else None
        nonfinite = [0 if worker == lead else ctx.overflows(u) for worker, u in enumerate(us)]
        if lead is None:
            return Led(leader, None, nonfinite)
        wire, indices = ctx.select(us[lead])
        assert wire is not None and indices is not None, "the selector chooses some"
        if wire is indices:  # else `select` has done so
            ctx.describes(wire)  # or refuses it
        values, nonfinite[lead] = ctx.read(us[lead], indices)
        return Led(leader, Selection(lead, wire, indices, values), nonfinite)

    def encode(self, us: list[Compensated], choice: Led, ctx: StepContext) -> averaging.Common:
        own = choice.selection
        with ctx.timer.phase("broadcast"):
            indices, nbytes = _broadcast(choice, ctx)
        values = [own.values if own is not None and worker == own.worker else u.at(indices, ctx.ops)
                  for worker, u in enumerate(us)]
        selection = 8.0 * nbytes / ctx.workers.total  # a worker leads once in so many steps
        return averaging.encode_common(indices, values, ctx, choice.leader, selection)

    def combine(self, message: averaging.Common, ctx: StepContext) -> Exchanged:
        return message.mean(ctx)


def _broadcast(choice: Led, ctx: StepContext) -> tuple[Array, int]:
    """The leader's indices on every rank, and the bytes of its selection, which travels in the compact form."""
    own = choice.selection
    like = ctx.selector.wire_like(ctx)
    compact = like is not None
    if like is None:  # the indices, as many as only the leader knows
        length = np.array([0 if own is None else own.wire.size], np.int64)
        ctx.comm.broadcast(length, choice.leader)
        validation.counts(length.tolist(), ctx.n, "indices")
        like = ctx.ops.empty(int(length[0]), ctx.ops.index_dtype(ctx.n))
    wire = like if own is None else own.wire
    ctx.comm.broadcast(wire, choice.leader)
    if own is not None:
        return own.indices, wire.nbytes
    return validation.ascending(ctx.selector.expand(wire, ctx) if compact else wire, ctx), wire.nbytes
