"""The levels of a step: ranks compress their own vectors, or slices of the means of their nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from ..comm.interfaces import Communicator, Levels
from ..comm.safety.collective_errors import run_collectively
from ..comm.safety.fault_injection import TOLERANT
from ..errors import RankLeft
from ..schemes.interfaces import StepContext
from ..schemes.registry import Scheme
from ..schemes.values import Mean, Span, Tensor
from ..schemes.workers import Workers
from ..types import Array

SLICE_SEED = 15_485_863  # between the random numbers of two slices

Result = TypeVar("Result")


class OneLevel:
    """Every rank's vectors are compressed as they are.

    Attributes
    ----------
    place : mapping of str to int
        The slice that this rank keeps, for its saved state; empty if it keeps whole vectors.
    """

    place: Mapping[str, int] = MappingProxyType({})

    def own(self, vector: Array) -> slice:
        """The elements of a whole vector that this rank keeps error memory of."""
        return slice(0, vector.size)

    def memories(self, workers: int) -> int:
        """Number of error memories of a rank with so many workers."""
        return workers

    def workers(self, everyone: Workers) -> Workers:
        """The workers of the scheme, ``everyone`` being those of all ranks."""
        return everyone

    def context(self, ctx: StepContext) -> StepContext:
        """The context that the parts of the scheme get, ``ctx`` being that of all ranks and whole vectors."""
        return ctx

    def at_step(self, ctx: StepContext, number: int, measured: bool, target: Array | None, left_out: list[Span]
                ) -> StepContext:
        """The parts' context of one step."""
        return ctx.at_step(number, measured, target, left_out)

    def agree(self, comm: Communicator, state: str, error: Exception | None) -> None:
        """Raise on every rank unless all whose states must match describe theirs alike, and none has an error."""
        comm.agree(state, error)

    def stopped(self, failed: bool) -> bool:
        """True if this rank cannot prepare the step, since it, or another that it depends on, has ``failed``."""
        return failed

    def vectors(self, flat: list[Array], ctx: StepContext) -> list[Array]:
        """The vectors that this rank compresses, of its workers' whole ones."""
        return flat if flat[0].size == ctx.n else [g[: ctx.n] for g in flat]

    def spans(self, spans: list[Span], ctx: StepContext) -> list[Span]:
        """Spans of whole vectors as they lie in those that this rank compresses."""
        return spans

    def anywhere(self, nonfinite: list[int]) -> list[int]:
        """Elements to refuse in what this rank compresses or, if it has a part of it, in any part."""
        return nonfinite

    def blamed(self, nonfinite: list[int], flat: list[Array], ctx: StepContext) -> list[int]:
        """Elements that this rank reports, by its workers; of ``nonfinite`` to refuse in what is compressed."""
        return nonfinite

    def together(self, work: Callable[[], Result], may_refuse: bool) -> Result:
        """The result of ``work``, which all ranks refuse if one of them may and does."""
        return work()

    def joined(self, mean: Mean, local: Array | None, ctx: StepContext) -> tuple[Mean, Array | None]:
        """The mean of whole vectors, and what memories add to it for this rank alone."""
        return mean, local


class TwoLevels(OneLevel):
    """The nodes are the workers; a rank compresses its slice of the mean over its node's ranks and their workers.

    Schedule: reduce-scatter in the memory of the node; the scheme among the ranks that have the same slice, one on each
    node; all-gather in the memory of the node: of indices and values if the mean of every slice is sparse.
    Cost: 1/q of the work and of the error memory per rank, with q ranks per node; between nodes the messages of one
    rank per node. In the memory of the node, the vector once and its mean.
    Restrictions: a tensor cut by a slice counts as several, of whole rows if it has several dimensions. Nodes have as
    many slices as the smallest has ranks; further ranks contribute to the mean and receive the result.
    """

    def __init__(self, comm: Communicator, levels: Levels) -> None:
        self._comm, self._levels = comm, levels
        self.place = {"node": levels.across.rank, "nodes": levels.nodes, "slice": levels.place,
                      "slices": levels.slices}
        self._own = slice(0, 0)  # this rank's

    def own(self, vector: Array) -> slice:
        return self._levels.slice_of(vector)

    def memories(self, workers: int) -> int:
        return 1

    def workers(self, everyone: Workers) -> Workers:
        return Workers.equal(1, self._levels.nodes)

    def context(self, ctx: StepContext) -> StepContext:
        # For the node's sum and the mean of all nodes; most steps write this rank's slice alone.
        self._room = ctx.ops.empty(ctx.n, ctx.dtype)
        self._own = own = self._levels.slice_of(self._room)
        start, stop, across = own.start, own.stop, self._levels.across
        cut = [(span, density) for span, density in zip(ctx.spans, ctx.densities, strict=True) if _clipped(span, own)]
        return replace(
            ctx, comm=across, workers=Workers.equal(1, across.size), first_worker=across.rank, n=stop - start,
            seed=ctx.seed + SLICE_SEED * self._levels.place, all_ranks=ctx,
            tensors=[part for tensor in ctx.tensors for part in parts_of(tensor, start, stop)],
            spans=self.spans([span for span, _ in cut], ctx), densities=[density for _, density in cut],
        )  # fmt: skip

    def at_step(self, ctx: StepContext, number: int, measured: bool, target: Array | None, left_out: list[Span]
                ) -> StepContext:
        whole = _whole(ctx).at_step(number, measured, target, left_out)
        own = None if target is None else target[self._own]
        return ctx.at_step(number, measured, own, self.spans(left_out, ctx), whole)

    def agree(self, comm: Communicator, state: str, error: Exception | None) -> None:
        comm.fail_together(error)
        run_collectively(comm, lambda: self._levels.across.agree(state))  # others have other parts, or none

    def stopped(self, failed: bool) -> bool:
        return bool(self._levels.largest([int(failed)])[0])

    def vectors(self, flat: list[Array], ctx: StepContext) -> list[Array]:
        whole = _whole(ctx)
        total, *others = (g[: whole.n] for g in flat)
        if others:  # summed without new memory: if a rank had none, its node would wait for it
            first, total = total, self._room
            total[:] = first
            for other in others:
                ctx.ops.add(total, other)
        self._levels.reduce_scatter(total, self._room, self._levels.nodes / whole.workers.total)
        return [self._room[self._own]]

    def spans(self, spans: list[Span], ctx: StepContext) -> list[Span]:
        clipped = (_clipped(span, self._own) for span in spans)
        return [(start - self._own.start, stop - self._own.start) for start, stop in filter(None, clipped)]

    def anywhere(self, nonfinite: list[int]) -> list[int]:
        return self._levels.largest(nonfinite)

    def blamed(self, nonfinite: list[int], flat: list[Array], ctx: StepContext) -> list[int]:
        if not any(nonfinite):
            return [0] * len(flat)
        own = [ctx.ops.count_nonfinite(g[: _whole(ctx).n])[0] for g in flat]
        return own if any(self._levels.largest([sum(own)])) else nonfinite * len(flat)

    def together(self, work: Callable[[], Result], may_refuse: bool) -> Result:
        result: Result | None = None
        error: Exception | None = None
        try:
            result = work()
        except Exception as caught:  # of any class: the other ranks of the node wait for the verdict
            error = caught
        if may_refuse:
            self._comm.fail_together(error)
        elif self._levels.largest([int(error is not None)])[0]:
            raise error or RankLeft("another rank of this node left the step by an error: free this communicator on "
                                    "all ranks, and make a new Comm")
        assert result is not None, "else an error was raised"
        return result

    def joined(self, mean: Mean, local: Array | None, ctx: StepContext) -> tuple[Mean, None]:
        levels, n, whole, ops = self._levels, _whole(ctx).n, _whole(ctx), ctx.ops
        k = 0 if mean.indices is None else mean.indices.size
        dense, longest = levels.largest([int(mean.indices is None or local is not None), k])
        if mean.indices is not None and not dense:
            indices = mean.indices.astype(ops.index_dtype(n)) + self._own.start
            indices, values = levels.gather(indices, longest), levels.gather(mean.values, longest)
            return Mean(ops.vouch(indices, n), values, n), None
        room = self._room if whole.target is None else whole.target
        own = room[self._own]
        mean.dense(ops, own)
        if local is not None:
            ops.add(own, local)
        levels.all_gather(room)
        return Mean(None, room, n), None


def takes_slices(scheme: Scheme, measures: int) -> bool:
    """True if a reducer's ranks keep slices where a node has several ranks.

    With ``nodes=auto`` they do not for measures of whole vectors, nor in a job that goes on without lost ranks, each
    of which would take a slice of its node's memory along.
    """
    whole = bool(measures) or os.environ.get(TOLERANT) == "1"
    return scheme.slices and not (whole and scheme.options["nodes"] == "auto")


def levels_of(comm: Communicator, slices: bool) -> OneLevel:
    """The levels of a reducer whose ranks keep ``slices`` of vectors, if they have two levels (collective)."""
    levels = comm.levels if slices else None
    return OneLevel() if levels is None else TwoLevels(comm, levels)


def parts_of(tensor: Tensor, start: int, stop: int) -> list[Tensor]:
    """The parts of a tensor that lie in ``[start, stop)``, counted from there: whole rows, and the pieces around them.

    Examples
    --------
    >>> parts_of((10, 40, (6, 5)), 12, 33)
    [(0, 3, (3,)), (3, 18, (3, 5)), (18, 21, (3,))]
    >>> parts_of((10, 40, (6, 5)), 0, 10)
    []
    """
    first, last, shape = tensor
    begin, end = max(first, start), min(last, stop)
    if begin >= end:
        return []
    if (begin, end) == (first, last):
        return [(begin - start, end - start, shape)]
    row = (last - first) // shape[0] if len(shape) > 1 else 1
    top, bottom = first - (first - begin) // row * row, first + (end - first) // row * row
    if len(shape) < 2 or top >= bottom:
        return [(begin - start, end - start, (end - begin,))]
    cuts = [(begin, top, (top - begin,)), (top, bottom, ((bottom - top) // row, *shape[1:])),
            (bottom, end, (end - bottom,))]
    return [(a - start, b - start, form) for a, b, form in cuts if a < b]


def _clipped(span: Span, own: slice) -> Span | None:
    """The part of a span in a slice; None if there is none."""
    start, stop = max(span[0], own.start), min(span[1], own.stop)
    return (start, stop) if start < stop else None


def _whole(ctx: StepContext) -> StepContext:
    """The context of all ranks and whole vectors beside that of a slice."""
    assert ctx.all_ranks is not None, "of two levels"
    return ctx.all_ranks
