"""One step of a scheme's parts: ``compensate -> compress -> exchange -> update``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..comm.safety.collective_errors import together
from ..errors import InvalidArgument, NonFiniteGradient
from ..schemes.memories import DenseMean
from ..types import Array, Compensated, Exchanged, Mean, Sent
from .step import Step

# The result of a step's compressed part, what memories add to it for this rank alone, and the update still to be done.
Treated = tuple[Exchanged, Array | None, Iterator[None]]
IN_FLIGHT_BYTES = 1 << 20  # of what goes uncompressed: from here on it travels beside the compressed exchange


class Pipeline:
    """Runs the parts of one scheme, step after step.

    The flat vectors it gets are longer than the ``n`` elements the parts treat where some arrays go dense: what lies
    behind is averaged uncompressed; ``dense`` is what the scheme's memory does with that mean.
    """

    def __init__(self, parts: Any, step: Step, check_finite: bool) -> None:
        self.memories, self.exchange, self.schedule = parts.memories, parts.exchange, parts.schedule
        self.dense = getattr(parts.memories[0], "for_dense", DenseMean)()
        self.step, self._check_finite = step, check_finite

    def stateful(self) -> Iterator[tuple[str, Any]]:
        """What has state, and how its names begin."""
        yield from ((f"memory/{worker}/", memory) for worker, memory in enumerate(self.memories))
        yield "dense/", self.dense
        yield "exchange/", self.exchange
        yield "schedule/", self.schedule

    def check(self, bucket: Any, number: int) -> None:
        """Refuse a layout that the scheme cannot have, or the loaded state is not of, before step ``number``."""
        if self.memories[0].silences and bucket.total > bucket.n:
            raise InvalidArgument("arrays cannot go dense where a scheme sends nothing in some steps; expected "
                                  "dense=none and no density of 1, or between=gradient")
        for memory in self.memories:
            memory.check(bucket.n)
        self.dense.check(bucket.total - bucket.n, self.step, number)

    def set_aside(self, spans: list[tuple[int, int]]) -> None:
        """Empty what is kept of some spans of the flat vectors, until ``put_back``."""
        n = self.step.n
        compressed = [span for span in spans if span[0] < n]
        dense = [(start - n, stop - n) for start, stop in spans if start >= n]
        for part in self._keepers():
            part.set_aside(dense if part is self.dense else compressed)

    def put_back(self) -> None:
        """Give the parts what was set aside, in place of what the step has made of it."""
        for part in self._keepers():
            part.put_back(self.step.ops)

    def _keepers(self) -> list[Any]:
        """The parts that keep elements of the vectors, and can do without some of them in a step."""
        return [part for part in (*self.memories, self.dense, self.exchange) if hasattr(part, "set_aside")]

    def silent(self, number: int) -> bool:
        """Whether a step sends nothing at all; the memories are of one kind and know the step's number."""
        return self.memories[0].silent(number)

    def select(self, flat: list[Array]) -> tuple[list[Compensated], list[int]]:
        """All that a rank does by itself: compensated gradients, what it selects, how many are not finite."""
        step = self.step
        workers = [memory.compensate(g[: step.n], step) for memory, g in zip(self.memories, flat, strict=True)]
        if self.silent(step.number):
            return self._leave_out(workers, flat)
        found = self.exchange.select(workers, step) if step.n else [0] * len(flat)
        return workers, [
            count + (self.dense.overflows(g[step.n :], step) if g.size > step.n else 0)
            for count, g in zip(found, flat, strict=True)
        ]

    def _leave_out(self, workers: list[Compensated], flat: list[Array]) -> tuple[list[Compensated], list[int]]:
        """In a step without an agreement a gradient that is not finite counts as zero, of which all are told later."""
        step = self.step
        found = [step.overflows(Compensated(None, g)) for g in flat] if self._check_finite else [0] * len(flat)
        for worker, count in enumerate(found):
            if count:
                workers[worker] = self.memories[worker].compensate(step.ops.zeros(step.n, step.dtype), step)
        return workers, found

    def set_shift(self, flat: list[Array]) -> None:
        """Give the memories their workers' shifts, and the mean of all (collective)."""
        step = self.step
        mean = self._start_mean([g[: step.n] for g in flat], step.ops.empty(step.n, flat[0].dtype))()
        # No negative zeros, which averages over several workers would lose; CuPy's own addition loses denormal numbers.
        step.ops.add(mean, step.ops.zeros(mean.size, mean.dtype))
        for memory, g in zip(self.memories, flat, strict=True):
            memory.set_shift(g[: step.n].copy(), mean)

    def nonfinite_error(self, flat: list[Array], found: list[int], bucket: Any) -> NonFiniteGradient | None:
        """What to tell all ranks about NaN or infinity in this one's gradients; ``found`` counts them by worker."""
        if not self._check_finite or not any(found):
            return None
        worker = next(worker for worker, count in enumerate(found) if count)
        count, first = self.step.ops.count_nonfinite(flat[worker])
        if not count:
            return NonFiniteGradient(
                f"error memory and gradient overflowed in step {self.step.number}: magnitudes must stay below "
                f"{self.step.limit:g} in {self.step.dtype}, so that sums and norms are finite; error memory is "
                "untouched. Divide the loss by a constant")
        whose = f" of worker {worker}" if len(flat) > 1 else ""
        return NonFiniteGradient(
            f"{bucket.where(first)}{whose} is {flat[worker][first]} in step {self.step.number} "
            f"({count} of {bucket.total} elements are not finite); error memory is untouched. "
            "nonfinite='skip' leaves out such steps on all ranks"
        )

    def run(self, flat: list[Array], workers: list[Compensated]) -> Exchanged:
        """What follows the agreement of all ranks; the mean of the whole vectors."""
        try:
            return self._run(flat, workers)
        except Exception:
            self.step.settle()
            raise

    def _run(self, flat: list[Array], workers: list[Compensated]) -> Exchanged:
        step, total = self.step, flat[0].size
        tail = self._start_tail(flat) if total > step.n and not self.silent(step.number) else None
        result, local, update = self._treat(workers)
        dense = tail and self.dense.apply(tail(), step)
        if dense is not None and not step.plain:
            self._refuse_misfits(dense)
        # Nothing is refused any more.
        _finish(update)
        if dense is not None:
            self.dense.keep()  # what it gave is copied
        self.schedule.observe(result.mean, step)
        return result._replace(mean=_joined(result.mean, local, dense, total, step))

    def _treat(self, workers: list[Compensated]) -> Treated:
        """What the scheme's parts treat."""
        if self.silent(self.step.number) or not self.step.n:
            return self._alone(workers)
        if self.step.result is not None and not self.step.plain:
            return self._narrowed(workers)
        return self._early(workers) if self.exchange.early else self._late(workers)

    def nothing(self, n: int) -> Exchanged:
        """The result of a step in which nothing is sent: a zero mean."""
        step = self.step
        return Exchanged(Mean(step.ops.arange(0), step.ops.empty(0, step.dtype), n), [], 0.0)

    def _alone(self, workers: list[Compensated]) -> Treated:
        """A step that sends nothing compressed."""
        result = self.nothing(self.step.n)
        sent = [Sent(result.mean.indices, result.mean.values)] * len(workers)
        local = self._local(workers, sent)
        return result._replace(sent=sent), local, self._update(workers, sent)

    def _early(self, workers: list[Compensated]) -> Treated:
        """What is sent is known before values travel, so memories are updated meanwhile.

        Not where a narrow wire may overflow, though every gradient was finite: then the step is not to change them.
        All ranks hold the same mean, so all see the overflow.
        """
        step = self.step
        with step.timed("compress"):
            sent = self.exchange.compress(workers, step)
        local = self._local(workers, sent)
        update = step.pieces("update", self._update(workers, sent))
        if not step.codec.may_overflow(step.dtype):
            with step.timed("exchange"), step.comm.meanwhile(update):
                return self.exchange.exchange(workers, sent, step), local, iter(())
        with step.timed("exchange"):
            result = self.exchange.exchange(workers, sent, step)
        self._refuse_overflow(result.mean)
        _finish(update)
        return result, local, iter(())

    def _late(self, workers: list[Compensated]) -> Treated:
        """The exchange itself decides what counts as sent; no update waits for the dense arrays' mean."""
        result = self._exchanged(workers)
        local = self._local(workers, result.sent)
        _finish(self.step.pieces("update", self._update(workers, result.sent)))
        return result, local, iter(())

    def _narrowed(self, workers: list[Compensated]) -> Treated:
        """The result's dtype is narrower than that of computation: no memory changes before the result fits.

        All ranks hold the same mean, so all see what does not fit; with a part of its own each rank tells the others.
        """
        result = self._exchanged(workers)
        local = self._local(workers, result.sent)
        if local is None:
            result = self._held_back(result)
            self._refuse_misfits(result.mean.values)
        else:
            whole = _joined(result.mean, local, None, result.mean.n, self.step)
            together(self.step.comm, lambda: self._refuse_misfits(whole.values))
        return result, local, self.step.pieces("update", self._update(workers, result.sent))

    def _exchanged(self, workers: list[Compensated]) -> Exchanged:
        step = self.step
        with step.timed("compress"):
            sent = self.exchange.compress(workers, step)
        with step.timed("exchange"):
            result = self.exchange.exchange(workers, sent, step)
        self._refuse_overflow(result.mean)
        return result

    def _held_back(self, result: Exchanged) -> Exchanged:
        """The mean as far as the result's dtype can hold it; every worker's memory keeps what is left, as not sent."""
        step, mean = self.step, result.mean
        misfits = step.misfits(mean.values)
        if misfits is None or not self.memories[0].remembers or step.ops.count_nonfinite(misfits.excess)[0]:
            return result
        values, back = mean.values.copy(), misfits.excess
        step.ops.scatter(values, misfits.positions, misfits.held)
        step.ops.scale(back, -1.0)
        at = misfits.positions if mean.indices is None else mean.indices[misfits.positions]
        return result._replace(mean=mean._replace(values=values),
                               sent=[one.with_more(at, back, step.n, step.ops) for one in result.sent])

    def _update(self, workers: list[Compensated], sent: list[Sent]) -> Iterator[None]:
        for memory, u, one in zip(self.memories, workers, sent, strict=True):
            yield from memory.update(u, one, self.step)

    def _local(self, workers: list[Compensated], sent: list[Sent]) -> Array | None:
        """What memories add to the mean for this rank alone: the average over its workers.

        Written so that the average of equal parts is that part, to the last bit.
        """
        step = self.step
        parts = [memory.local(u, one, step) for memory, u, one in zip(self.memories, workers, sent, strict=True)]
        first, *others = parts
        if first is None or not others:
            return first
        for other in others:
            step.ops.axpby(other, 1.0, other, -1.0, first)
        for other in others[1:]:
            step.ops.add(others[0], other)
        step.ops.axpby(first, 1.0, first, 1.0 / len(parts), others[0])
        return first

    def _start_tail(self, flat: list[Array]) -> Callable[[], Array]:
        """Begin to average what goes uncompressed; the result is called for the mean.

        A long vector is in flight while the others are compressed and exchanged. A short one is done when asked for:
        handing it to a thread would take longer.
        """
        step = self.step
        tails = [g[step.n :] for g in flat]
        long = isinstance(tails[0], np.ndarray) and tails[0].nbytes >= IN_FLIGHT_BYTES
        # Kept, since a long vector's fresh pages take time in each step; what comes of it is copied.
        room = step.scratch("dense-mean", tails[0].size, tails[0].dtype)
        mean = self._start_mean(tails, room, beside=bool(step.n) and long)

        def finish() -> Array:
            with step.timed("exchange"):
                return mean()

        return finish

    def _start_mean(self, vectors: list[Array], total: Array, beside: bool = False) -> Callable[[], Array]:
        """Begin to average dense vectors, one a local worker, which stay as they are, into ``total``."""
        step = self.step
        first, *others = vectors

        def part(begin: int, end: int) -> Array:
            here = total[begin:end]
            if others:
                here[:] = first[begin:end]
            for other in others:
                step.ops.add(here, other[begin:end])
            return here

        return step.start_mean(first, part, target=total, beside=beside, source=None if others else first)

    def _refuse_misfits(self, values: Array) -> None:
        """Raise if values of the result, also those of dense arrays, become infinite in its dtype."""
        misfits = self.step.misfits(values) if self._check_finite else None
        if misfits is not None and self.step.result is not None:
            raise NonFiniteGradient(
                f"the mean overflowed in step {self.step.number}: {misfits.positions.size} of its elements do not fit "
                f"the gradients' dtype, whose largest number is {self.step.result[0]:g}; error memory is untouched. "
                "Divide the loss by a constant, or reduce float32 gradients")

    def _refuse_overflow(self, mean: Mean) -> None:
        step = self.step
        if self._check_finite and step.codec.may_overflow(step.dtype) and step.ops.count_nonfinite(mean.values)[0]:
            raise NonFiniteGradient(f"values={step.codec.values} overflowed in step {step.number}: use values=float32")


def _joined(mean: Mean, local: Array | None, tail: Array | None, total: int, step: Step) -> Mean:
    """The mean of all arrays: of the compressed ones, with this rank's own part, and of the others."""
    if local is None and total == mean.n:
        return mean
    if local is None and mean.indices is not None:
        if tail is None:
            return mean._replace(n=total)
        indices = [mean.indices.astype(step.ops.index_dtype(total)), step.ops.arange(total)[mean.n :]]
        values = step.ops.concatenate([mean.values, tail], step.dtype)
        return Mean(step.ops.concatenate(indices, indices[1].dtype), values, total)
    whole = step.ops.zeros(total, step.dtype)
    mean.dense(step.ops, whole[: mean.n])
    if local is not None:
        step.ops.add(whole[: mean.n], local)
    if tail is not None:
        whole[mean.n :] = tail
    return Mean(None, whole, total)


def _finish(work: Iterator[None]) -> None:
    for _ in work:
        pass
