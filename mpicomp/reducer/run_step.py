"""One step of a scheme's parts: ``compensate -> choose -> agree -> encode -> combine || update``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ..comm.safety.collective_errors import run_collectively
from ..errors import SKIPPING, InvalidArgument, NonFiniteGradient
from ..schemes import averaging
from ..schemes.interfaces import StepContext
from ..schemes.parts import Parts
from ..schemes.stateful import Stateful
from ..schemes.values import Choice, Compensated, Exchanged, Mean, Message, Sent, Span
from ..types import Array
from .layout import Bucket
from .levels import OneLevel
from .local_steps import LocalSteps, nothing_sent

# The result of a step's compressed part, what memories add to it for this rank alone, and the update still to be done.
Treated = tuple[Exchanged, Array | None, Iterator[None]]
FAILED = 1 << 62  # of elements to refuse: a rank could not look for them
IN_FLIGHT_BYTES = 1 << 20  # of what goes uncompressed: from here on it travels beside the compressed exchange


class Prepared(NamedTuple):
    """Results of a rank by itself, before ranks agree on the step.

    Attributes
    ----------
    flat : list of array
        Each worker's whole vector.
    us : list of Compensated
        The compressed part of each, with what was held back.
    choice : Choice or None
        The exchange's own; None if nothing is sent.
    nonfinite : list of int
        Elements to refuse, by worker.
    """

    flat: list[Array]
    us: list[Compensated]
    choice: Choice | None
    nonfinite: list[int]


class Pipeline:
    """Runs the parts of one scheme, step after step.

    If some arrays go dense, the flat vectors are longer than the ``n`` elements the parts treat. The step averages the
    remaining elements uncompressed; ``dense`` is what the scheme's memory does with that mean.
    """

    def __init__(self, parts: Parts, levels: OneLevel | None = None) -> None:
        self.levels = levels or OneLevel()
        self.memories, self.exchange, self.schedule = parts.memories, parts.exchange, parts.schedule
        self._checks_result = not type(parts.exchange).__module__.startswith("mpicomp.")
        self.dense = parts.memories[0].for_dense()
        self.local_steps = LocalSteps(parts.memories)

    def stateful(self) -> Iterator[tuple[str, Stateful]]:
        """The parts with state, and how its names begin."""
        yield from ((f"memory/{worker}/", memory) for worker, memory in enumerate(self.memories))
        yield "dense/", self.dense
        yield "exchange/", self.exchange
        yield "schedule/", self.schedule

    def check(self, bucket: Bucket, ctx: StepContext, number: int) -> None:
        """Refuse a layout that the scheme cannot have, or the loaded state is not of, before step ``number``."""
        self.local_steps.check(bucket.total - bucket.n)
        for memory in self.memories:
            memory.check(ctx.n, ctx.dtype)
        self.dense.check(bucket.total - bucket.n, ctx.dtype, number, ctx.comm.rank)
        if ctx.n:
            self.exchange.check(ctx)

    def set_aside(self, spans: list[Span], dense: list[Span]) -> None:
        """Empty what is kept of some spans of the compressed and of the dense vector, until ``put_back``."""
        for memory in self.memories:
            memory.set_aside(spans)
        self.exchange.set_aside(spans)
        self.dense.set_aside(dense)

    def put_back(self, ctx: StepContext) -> None:
        """Give the parts what was set aside, in place of what the step has made of it."""
        for memory in self.memories:
            memory.put_back(ctx.ops)
        self.exchange.put_back(ctx.ops)
        self.dense.put_back(ctx.ops)

    def prepare(self, flat: list[Array], ctx: StepContext) -> Prepared | None:
        """All that a rank does by itself: compensate and choose. None if a rank that it depends on could not."""
        vectors, whole = self.levels.vectors(flat, ctx), ctx.all_ranks or ctx
        local, choice, found = self.local_steps.covers(ctx.number), None, [0] * len(vectors)
        try:
            us = [memory.compensate(g, ctx) for memory, g in zip(self.memories, vectors, strict=True)]
            if local:
                found = self.local_steps.nonfinite(vectors, ctx)
            elif ctx.n:
                choice = self.exchange.choose(us, ctx)
                found = choice.nonfinite
        except Exception:
            self.levels.anywhere([FAILED] * len(vectors))
            raise
        found = self.levels.anywhere(found)
        if FAILED in found:
            return None
        if local:
            self.local_steps.leave_out(us, found, ctx)
            return Prepared(flat, us, None, self.levels.blamed(found, flat, ctx))
        return Prepared(flat, us, choice, [
            count + (self.dense.overflows(g[whole.n :], whole) if g.size > whole.n else 0)
            for count, g in zip(self.levels.blamed(found, flat, ctx), flat, strict=True)
        ])

    def set_shift(self, flat: list[Array], ctx: StepContext) -> None:
        """Give the memories their workers' shifts, and the mean of all (collective)."""
        vectors = self.levels.vectors(flat, ctx)
        mean = _start_mean(vectors, ctx.ops.empty(ctx.n, flat[0].dtype), ctx)()
        # No negative zeros, which averages over several workers would lose; CuPy's own addition loses denormal numbers.
        ctx.ops.add(mean, ctx.ops.zeros(mean.size, mean.dtype))
        for memory, g in zip(self.memories, vectors, strict=True):
            memory.set_shift(g.copy(), mean.copy())

    def error_of_gradients(self, prepared: Prepared, bucket: Bucket, ctx: StepContext) -> NonFiniteGradient | None:
        """Search this rank's gradients after an exchange whose mean is not finite; the error about them, if any."""
        found = [ctx.ops.count_nonfinite(g)[0] for g in prepared.flat]
        return self.nonfinite_error(prepared._replace(nonfinite=found), bucket, ctx)

    def nonfinite_error(self, prepared: Prepared, bucket: Bucket, ctx: StepContext) -> NonFiniteGradient | None:
        """The error about NaN or infinity in this rank's gradients; None if there are none, or they are allowed."""
        flat, found = prepared.flat, prepared.nonfinite
        if not ctx.check_finite or not any(found):
            return None
        worker = next(worker for worker, count in enumerate(found) if count)
        count, first = ctx.ops.count_nonfinite(flat[worker])
        if not count:
            return NonFiniteGradient(
                f"error memory and gradient overflowed in step {ctx.number}: magnitudes must stay below "
                f"{ctx.limit:g} in {ctx.dtype}, so that sums and norms are finite; error memory is "
                "untouched. Divide the loss by a constant")
        whose = f" of worker {worker}" if len(flat) > 1 else ""
        return NonFiniteGradient(
            f"{bucket.where(first)}{whose} is {flat[worker][first]} in step {ctx.number} "
            f"({count} of {bucket.total} elements are not finite); error memory is untouched. {SKIPPING}"
        )

    def run(self, prepared: Prepared, ctx: StepContext) -> Exchanged:
        """All that follows the agreement; the mean of the whole vectors (collective)."""
        try:
            return self._run(prepared, ctx)
        except Exception as error:
            averaging.settle(ctx)
            if isinstance(error, NonFiniteGradient) and not self._may_refuse(ctx):  # perhaps on this rank alone
                raise InvalidArgument(f"exchange {self.exchange.name} refused a step that all ranks had agreed on: "
                                      "count what is not finite in choose, or let may_refuse(ctx) be true and refuse "
                                      "on all ranks alike") from error
            raise

    def _run(self, prepared: Prepared, ctx: StepContext) -> Exchanged:
        flat, total, whole = prepared.flat, prepared.flat[0].size, ctx.all_ranks or ctx
        tail = _start_tail(flat, whole) if total > whole.n else None  # not in local steps, which allow no dense arrays
        result, local, update = self.levels.together(lambda: self._treat(prepared.us, prepared.choice, ctx),
                                                     self._may_refuse(ctx))
        dense = tail and self.dense.apply(tail(), whole)
        if dense is not None and not ctx.plain:
            self._refuse_misfits(dense, ctx)
        # Nothing is refused any more.
        _finish(update)
        if dense is not None:
            self.dense.keep()  # what it gave is copied
        for memory in self.memories:
            memory.observe(result.mean, ctx)
        self.schedule.observe(result.mean, ctx)
        self.exchange.observe(result.mean, ctx)
        mean, local = self.levels.joined(result.mean, local, ctx)
        mean = _joined(mean, local, dense, total, ctx)
        return result if mean is result.mean else result._replace(mean=mean)

    def _treat(self, us: list[Compensated], choice: Choice | None, ctx: StepContext) -> Treated:
        """Encode, combine and update; memories are updated meanwhile, unless the result may still be refused."""
        if choice is None:
            result = nothing_sent(ctx.n, ctx)
            return result, self._local(us, result.sent, ctx), self._update(us, result.sent, ctx)
        with ctx.timer.phase("compress"):
            message = self.exchange.encode(us, choice, ctx)
        narrowed = ctx.result is not None and not ctx.plain
        beside = message.sent is not None and not self._may_refuse(ctx)
        if beside and not ctx.plain:
            local = self._local(us, message.sent, ctx)
            update = ctx.timer.pieces("update", self._update(us, message.sent, ctx))
            with ctx.timer.phase("exchange"), ctx.comm.meanwhile(update):
                return self._combined(message, ctx), local, iter(())
        with ctx.timer.phase("exchange"):
            result = self._combined(message, ctx)
        if not result.finite:
            ctx.refuse_overflow(result.mean.values)
        if ctx.plain:  # keeps nothing
            return result, None, iter(())
        local = self._local(us, result.sent, ctx)
        if narrowed:
            result = self._fitting(result, local, ctx)
        update = ctx.timer.pieces("update", self._update(us, result.sent, ctx))
        if not self._may_refuse(ctx):
            _finish(update)
        return result, local, update

    def _combined(self, message: Message, ctx: StepContext) -> Exchanged:
        """The exchange's result; that of an exchange of one's own is checked before memories rely on it."""
        result = self.exchange.combine(message, ctx)
        if self._checks_result:
            _check_result(result, self.exchange.name, ctx)
        return result

    def _may_refuse(self, ctx: StepContext) -> bool:
        """True if the result of a step that all ranks have agreed on may still be refused."""
        refusable = self.exchange.may_refuse(ctx) or (ctx.result is not None and not ctx.plain)
        return refusable and not self.local_steps.covers(ctx.number)

    def _fitting(self, result: Exchanged, local: Array | None, ctx: StepContext) -> Exchanged:
        """The result as far as its dtype, narrower than that of computation, can hold it; refused if that is not all.

        All ranks hold the same mean, so all see what does not fit; with a part of its own each rank tells the others.
        """
        if local is None:
            result = self._held_back(result, ctx)
            self._refuse_misfits(result.mean.values, ctx)
        else:
            whole = _joined(result.mean, local, None, result.mean.n, ctx)
            run_collectively(ctx.comm, lambda: self._refuse_misfits(whole.values, ctx))
        return result

    def _held_back(self, result: Exchanged, ctx: StepContext) -> Exchanged:
        """The mean as far as the result's dtype can hold it; every worker's memory keeps the excess, as not sent."""
        mean = result.mean
        misfits = ctx.misfits(mean.values)
        if misfits is None or not self.memories[0].remembers or ctx.ops.count_nonfinite(misfits.excess)[0]:
            return result
        values, back = mean.values.copy(), misfits.excess
        ctx.ops.scatter(values, misfits.positions, misfits.held)
        ctx.ops.scale(back, -1.0)
        at = misfits.positions if mean.indices is None else mean.indices[misfits.positions]
        return result._replace(mean=mean._replace(values=values),
                               sent=[one.with_more(at, back, ctx.n, ctx.ops) for one in result.sent])

    def _update(self, us: list[Compensated], sent: list[Sent], ctx: StepContext) -> Iterator[None]:
        for memory, u, one in zip(self.memories, us, sent, strict=True):
            yield from memory.update(u, one, ctx)

    def _local(self, us: list[Compensated], sent: list[Sent], ctx: StepContext) -> Array | None:
        """Average over this rank's workers of what memories add to the mean for this rank alone.

        Written so that the average of equal parts is that part, to the last bit.
        """
        mine = (memory.local(u, one, ctx) for memory, u, one in zip(self.memories, us, sent, strict=True))
        parts = [one for one in mine if one is not None]
        if len(parts) < 2:
            return parts[0] if parts else None
        first, *others = parts
        for other in others:
            ctx.ops.axpby(other, 1.0, other, -1.0, first)
        for other in others[1:]:
            ctx.ops.add(others[0], other)
        ctx.ops.axpby(first, 1.0, first, 1.0 / len(parts), others[0])
        return first

    def _refuse_misfits(self, values: Array, ctx: StepContext) -> None:
        """Raise if values of the result, also those of dense arrays, become infinite in its dtype."""
        misfits = ctx.misfits(values) if ctx.check_finite else None
        if misfits is not None and ctx.result is not None:
            raise NonFiniteGradient(
                f"the mean overflowed in step {ctx.number}: {misfits.positions.size} of its elements do not fit "
                f"the gradients' dtype, whose largest number is {ctx.result[0]:g}; error memory is untouched. "
                "Divide the loss by a constant, or reduce float32 gradients")


def _check_result(result: Exchanged, name: str, ctx: StepContext) -> None:
    """Refuse a result that is none, or a mean that does not fit the vector."""
    mean = getattr(result, "mean", None)
    if not isinstance(result, Exchanged) or not isinstance(mean, Mean):
        raise InvalidArgument(f"combine of exchange {name} must return an Exchanged whose mean is a Mean, got "
                              f"{type(result).__name__} with {type(mean).__name__}")
    expected = ctx.n if mean.indices is None else mean.indices.size
    if (mean.n, mean.values.size) != (ctx.n, expected):
        raise InvalidArgument(f"the mean of exchange {name} must be of n={ctx.n} elements with {expected} values, got "
                              f"n={mean.n} with {mean.values.size}")
    if mean.indices is not None and not ctx.ops.ascends(mean.indices, ctx.n):
        raise InvalidArgument(f"the mean of exchange {name} must have indices that ascend within [0, {ctx.n}), none "
                              "twice: add up what several ranks send of one element (ctx.ops.add_lists)")


def _start_tail(flat: list[Array], ctx: StepContext) -> Callable[[], Array]:
    """Begin to average what goes uncompressed; the result is called for the mean.

    A long vector is in flight while the others are compressed and exchanged. A short one is done when asked for:
    handing it to a thread would take longer.
    """
    tails = [g[ctx.n :] for g in flat]
    beside = bool(ctx.n) and tails[0].nbytes >= IN_FLIGHT_BYTES
    beside = beside and (ctx.comm.flies or isinstance(tails[0], np.ndarray))  # MPI's own call takes host arrays
    mean = _start_mean(tails, ctx.ops.empty(tails[0].size, tails[0].dtype), ctx, beside=beside)

    def finish() -> Array:
        with ctx.timer.phase("exchange"):
            return mean()

    return finish

def _start_mean(vectors: list[Array], total: Array, ctx: StepContext, beside: bool = False) -> Callable[[], Array]:
    """Begin to average dense vectors, one a local worker, which stay as they are, into ``total``."""
    first, *others = vectors

    def part(begin: int, end: int) -> Array:
        here = total[begin:end]
        if others:
            here[:] = first[begin:end]
        for other in others:
            ctx.ops.add(here, other[begin:end])
        return here

    return averaging.start_mean(first, part, ctx, target=total, beside=beside, source=None if others else first)


def _joined(mean: Mean, local: Array | None, tail: Array | None, total: int, ctx: StepContext) -> Mean:
    """The mean of all arrays: of the compressed ones, with this rank's own part, and of the others."""
    if local is None and total == mean.n:
        return mean
    if local is None and mean.indices is not None:
        if tail is None:
            return mean._replace(n=total)
        indices = [mean.indices.astype(ctx.ops.index_dtype(total)), ctx.ops.arange(total)[mean.n :]]
        values = ctx.ops.concatenate([mean.values, tail], ctx.dtype)
        return Mean(ctx.ops.concatenate(indices, indices[1].dtype), values, total)
    whole = ctx.ops.zeros(total, ctx.dtype)
    mean.dense(ctx.ops, whole[: mean.n])
    if local is not None:
        ctx.ops.add(whole[: mean.n], local)
    if tail is not None:
        whole[mean.n :] = tail
    return Mean(None, whole, total)


def _finish(work: Iterator[None]) -> None:
    for _ in work:
        pass
