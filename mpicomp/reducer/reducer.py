"""The Reducer: runs one scheme, step after step, and owns its state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import allreduce
from ..comm.interfaces import Communicator, Traffic
from ..comm.safety.collective_errors import check_communicator, run_collectively
from ..errors import InvalidArgument, NonFiniteGradient
from ..ops import ops_for
from ..ops.device import at_home
from ..ops.protocol import Ops
from ..schemes import compatibility
from ..schemes.interfaces import DensitySchedule, StepContext
from ..schemes.parts import Parts
from ..schemes.registry import Scheme
from ..schemes.stateful import Stateful
from ..schemes.timing import Trace
from ..schemes.values import Compensated, Exchanged, Mean, Span, StepStats
from ..schemes.workers import Workers
from ..types import Array
from . import saved_state
from .context import context_of
from .layout import Arrays, Bucket, Output
from .levels import OneLevel, levels_of, takes_slices
from .local_steps import nothing_sent
from .measures import Measures
from .run_step import Pipeline, Prepared

LONG = 1 << 20  # elements
NEW: Arrays = object()  # in the place of ``out``: memory for this mean alone


class LaidOut(NamedTuple):
    """The layout of a reducer's arrays, and the context of all its steps."""

    bucket: Bucket
    ctx: StepContext


class Reducer:
    """Average gradients over all ranks by a scheme, with the unsent part kept in error memory.

    Every step is ``compensate -> choose -> agree -> encode -> combine || update``. Before anything is sent, ranks
    compare what they are about to do (step, scheme, shapes) and whether their gradients are finite; ``half`` checks
    the sum instead. A step that is refused or skipped leaves the error memory as it was.

    Parameters
    ----------
    comm : Comm
    scheme : str or Scheme
        For example ``"scalecom:chunk=112,beta=0.1"``; see ``mpicomp schemes``.
    workers : int
        Virtual workers on this rank, each with its own gradient and memory; with more than one, every array
        passed to ``reduce`` has a leading dimension of this size. Ranks may hold different numbers.
    algorithm : str
        The dense all-reduce that adds values: a name of ``mpicomp.allreduce``.
    nonfinite : {"raise", "skip", "allow"}
        What NaN or infinity in any rank's gradient does, or a mean that the gradients' dtype cannot hold and no
        error memory can keep: raise NonFiniteGradient on every rank; give a zero mean on every rank and go on, memory
        untouched; or nothing at all (it will spread).
    densities : mapping of str to float, optional
        Of some arrays by name (``"gradient 0"`` and so on in a list), for ``layers=per-tensor`` and selectors that have
        one for each array; 1 sends an array uncompressed. See
        :func:`mpicomp.schemes.schedules.densities_by_flops`.
    measures : int
        Work out ``stats.measures`` in every so many-th step, and record them in the trace; 0 is never. For analysis:
        a measured step moves and passes over a few dense vectors more.
    trace : mpicomp.trace.Recorder, optional

    Raises
    ------
    InvalidArgument
        On every rank, naming what was expected and got.
    Disagreement
        On every rank, if they differ in scheme, step, shapes or dtype.

    Examples
    --------
    One rank, which sends one of four elements per step. The others wait in the error memory:

    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> import mpicomp
    >>> reducer = mpicomp.Reducer(mpicomp.Comm(MPI.COMM_SELF), "topk:k=1")
    >>> print(reducer.reduce(np.array([4.0, 3.0, 2.0, 1.0])))
    [4. 0. 0. 0.]
    >>> print(reducer.reduce(np.array([4.0, 3.0, 2.0, 1.0])))  # 2 x 3 is now the largest
    [0. 6. 0. 0.]
    >>> print(round(reducer.memory_norm(), 3))  # of [4, 0, 4, 2]
    6.0

    Arrays may also come in a dict or a list:

    >>> dense = mpicomp.Reducer(mpicomp.Comm(MPI.COMM_SELF), "dense")
    >>> mean = dense.reduce({"weight": np.ones((2, 2)), "bias": np.ones(2)})
    >>> mean["weight"].shape
    (2, 2)
    """

    def __init__(self, comm: Communicator, scheme: str | Scheme, *, workers: int = 1, algorithm: str = "auto",
                 nonfinite: str = "raise", densities: Mapping[str, float] | None = None, measures: int = 0,
                 trace: Trace | None = None) -> None:
        check_communicator(comm)
        self.comm, self.workers, self.nonfinite = comm, workers, nonfinite
        error: Exception | None = None
        slices = False
        try:
            self._densities = dict(densities or {})
            trace = trace if trace is not None and trace.enabled else None
            self.scheme = Scheme.parse(scheme)
            options = self.scheme.options
            compatibility.check_arguments(workers, nonfinite, measures, str(self.scheme), options)
            if self._densities:
                parts = self.scheme.parts(1)
                compatibility.check_densities(self._densities, str(self.scheme), options["layers"], parts)
            compatibility.check_clock(self.scheme.chooses, comm.reproducible, str(self.scheme))
            slices = takes_slices(self.scheme, measures)
            allreduce.check_requested(algorithm)
        except Exception as caught:  # of any class: the other ranks wait for the verdict, here and below
            error = caught
        comm.agree(f"Reducer {scheme} algorithm={algorithm} nonfinite={nonfinite} densities={densities or {}} "
                   f"measures={measures} slices={slices}", error)
        self._text = str(self.scheme)
        number = comm.count_reducer()  # in an agreement, two of one scheme for equal arrays must not be confused
        self._which = self._text if number == 1 else f"{self._text} (reducer {number})"
        compatibility.warn(self._text, self.scheme.warning_texts(), comm.rank)
        self._workers, self._algorithm, self._trace = Workers.of_all(comm, workers), algorithm, trace
        self._measure_interval, self._levels = measures, self._made_levels(slices)
        self.place = {"rank": comm.rank, "ranks": comm.size, **self._levels.place}
        self._start_anew()
        self._parts.codec.check_workers(self._levels.workers(self._workers).total)  # the same on all ranks
        self._left_out: list[str] = []  # arrays that take no part in a step
        self.step, self.stats = 0, StepStats()

    def _start_anew(self, schedule: DensitySchedule | None = None) -> None:
        """Make the parts, which know no arrays yet; but for a ``schedule``, which no refused step changes."""
        parts = self._made_parts(self._levels.memories(self.workers))
        self._parts = parts if schedule is None else parts._replace(schedule=schedule)
        self._pipeline = Pipeline(self._parts, self._levels)
        self._measures = Measures(self._measure_interval, self._parts.memories)
        self._laid_out: LaidOut | None = None
        self._state_of: str | None = None  # the arrays that the state is of
        self._blank = True  # no step is done, and no state was loaded

    def _made_levels(self, slices: bool) -> OneLevel:
        """The levels of this reducer's ranks, which keep ``slices`` if they can (collective)."""
        return levels_of(self.comm, slices)

    def _made_parts(self, memories: int) -> Parts:
        """Fresh parts with so many memories."""
        return self.scheme.parts(memories)

    def reduce(self, grads: Arrays, out: Arrays | None = None) -> Arrays:
        """The mean over all workers of all ranks, dense (collective).

        Parameters
        ----------
        grads : array, or dict, list or tuple of arrays
            This rank's gradients: C-contiguous, one of float16, bfloat16, float32, float64; not modified. Arrays of
            JAX, PyTorch and other libraries are read through DLPack.
        out : like grads, optional
            Receives the mean; may be ``grads`` itself. Saves allocating.

        Returns
        -------
        The mean in the structure, shapes and dtype of ``grads``: ``out``, or fresh arrays of NumPy or CuPy.
        """
        with at_home(grads):
            mean, output = self._run(grads, NEW if out is None else out)
            assert self._laid_out is not None and output is not None, "a step has run"
            bucket = self._laid_out.bucket
            bucket.write(mean, output)
            if out is not None:
                return out
            assert output.vector is not None, "new memory is one vector"
            return bucket.unflatten(output.vector, grads)

    def reduce_sparse(self, grads: Arrays) -> Mean:
        """The mean as ``(indices, values, n)`` over the flattened arrays (collective).

        Where a scheme sends everything, ``indices`` is None. The arrays are good until the next step.
        """
        return self._run(grads, None)[0]

    @contextmanager
    def leaving_out(self, names: Iterable[str]) -> Iterator[None]:
        """Within the block some arrays take no part in a step: their error memory stays as it is. Blocks may be nested.

        Parameters
        ----------
        names : iterable of str
            The same on all ranks. The gradients of these arrays must be zero; their means have no meaning.
        """
        outside = self._left_out
        self._left_out = sorted({*outside, *names})
        try:
            yield
        finally:
            self._left_out = outside

    def memory_norm(self) -> float:
        """Euclidean norm of this rank's error memory, over all its workers."""
        return sum(memory.squared_norm(self._ops) for memory in self._pipeline.memories) ** 0.5

    def set_shift(self, arrays: Arrays) -> None:
        """The vectors that gradients are taken relative to, with ``memory=shifted`` (collective).

        Parameters
        ----------
        arrays : like the gradients passed to ``reduce``
            For each of this rank's workers its own, for example its gradient at the optimum; copied.
        """
        try:
            with at_home(arrays):
                self._set_shift(arrays)
        except Exception:
            if self._blank:
                self._start_anew(self._parts.schedule)
            raise

    def _set_shift(self, arrays: Arrays) -> None:
        error: Exception | None = None
        if not self._pipeline.memories[0].takes_shift:  # the same on all ranks
            raise InvalidArgument(f"a shift needs a scheme with memory=shifted, got {self._text}")
        bucket, ctx = self._laid_out or self._lay_out(arrays, "shift of step")
        flat: list[Array] = []
        try:
            flat = bucket.flatten(self._read(bucket, arrays))
            if any(ctx.overflows(Compensated(None, one)) for one in flat):
                raise NonFiniteGradient(f"a shift must hold magnitudes below {ctx.limit:g} alone, in {ctx.dtype}: it "
                                        "is kept from step to step")
        except Exception as caught:
            error = caught
        self.comm.agree(f"shift of step {self.step} of {self._which} for {self._arrays}", error)
        self._pipeline.set_shift(flat, ctx)
        self._blank = False

    def learning_rate_dropped(self) -> None:
        """Tell the schedule of densities that training has come to another phase (collective; see ``accordion``)."""
        self.comm.agree(f"the learning rate drops before step {self.step} of {self._which}")
        self._pipeline.schedule.learning_rate_dropped()

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: step, error memory, and what exchange and schedule keep; NumPy copies."""
        kept = {prefix + name: array for prefix, part in self._stateful()
                for name, array in part.state(self._ops).items()}
        return {"scheme": str(self.scheme), "step": self.step, "workers": self.workers, "arrays": self._state_of,
                **self.place, **kept, **self._pipeline.local_steps.state()}

    def kept(self, vector: Array) -> slice:
        """The elements of a whole vector that this rank keeps error memory of: all, or its slice of the node's."""
        return self._levels.own(vector)

    @property
    def _ops(self) -> Ops:
        """Operations of the device that the parts' arrays are on; the host's before the first step."""
        return ops_for(np.empty(0)) if self._laid_out is None else self._laid_out.ctx.ops

    def _stateful(self) -> Iterator[tuple[str, Stateful]]:
        """The parts with state, and how their names begin."""
        yield from self._pipeline.stateful()
        yield "measures/", self._measures

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on, bit for bit, where ``state_dict`` was taken (collective).

        A state without the velocity of arrays that go dense begins that velocity at zero and warns with a
        ``SchemeWarning``.

        Raises
        ------
        InvalidArgument
            On every rank, if the state is of another scheme, of another number of workers or of other arrays, or has
            error memories of another rank or another number of ranks (``mpicomp.checkpoint`` redistributes them). Other
            arrays, or the same in another order, are refused by the next step if this reducer has done none.
        Disagreement
            On every rank, if ranks' states are of different steps, or one lacks what another has.
        """
        load_states([(self, state)])

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise what ``load_state_dict`` would refuse a state with, and take nothing of it (collective)."""
        lengths = arrays = None
        if self._laid_out is not None:
            bucket, ctx = self._laid_out
            lengths, arrays = {"memory": ctx.n, "dense": bucket.total - bucket.n}, bucket.arrays
        saved_state.agree_on(self.comm, state, self.scheme, self.workers, self._levels, lengths, arrays)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a state that is known to be this reducer's. Local: every rank must do the same."""
        self.step, self._state_of, self._blank = int(state["step"]), state.get("arrays"), False
        for prefix, part in self._stateful():
            part.load(saved_state.of_part(prefix, state))
        self._pipeline.local_steps.load(state.get("deferred"))
        self._laid_out = None  # the next step compares its arrays with the state

    def _run(self, grads: Arrays, out: Arrays | None) -> tuple[Mean, Output | None]:
        """One step, noted in the log of calls if there is one."""
        log = self.comm.log
        if log is None:
            return self._run_step(grads, out)
        try:
            log.begin("step", self.step, "of", self._text)
            return self._run_step(grads, out)
        finally:
            log.end()

    def _run_step(self, grads: Arrays, out: Arrays | None) -> tuple[Mean, Output | None]:
        """One step, around which the state of arrays that take no part in it is set aside."""
        try:
            bucket, template = self._laid_out or self._lay_out(grads, "step")
            try:
                return self._whole_step(bucket, template, grads, out)
            finally:
                if self._left_out:
                    self._pipeline.put_back(template)
        except Exception:
            if self._blank:  # a first step that is refused leaves nothing of its layout
                self._start_anew(self._parts.schedule)
            raise

    def _lay_out(self, grads: Arrays, what: str) -> LaidOut:
        """Take the layout of the first arrays, once all ranks have agreed on it (collective)."""
        laid_out: LaidOut | None = None
        error: Exception | None = None
        try:
            options = self.scheme.options
            bucket = Bucket(grads, self.workers, options["dense"], self._densities)
            allreduce.check_home(self._algorithm, bucket.ops.empty(0, bucket.compute))
            ctx = context_of(bucket, self.comm, self._workers, self._parts, options["layers"] == "per-tensor",
                             options["seed"], self._algorithm, self.nonfinite != "allow", self._trace)
            ctx = self._levels.context(ctx)
            self._pipeline.check(bucket, ctx, self.step)
            saved_state.check_arrays(self._state_of, bucket.arrays)
            laid_out = LaidOut(bucket, ctx)
        except Exception as caught:
            error = caught
        signature = "invalid" if laid_out is None else laid_out.bucket.signature
        self.comm.agree(f"{what} {self.step} of {self._which} for {signature}", error)
        assert laid_out is not None, "else an error was raised"
        laid_out.ctx.comm.open_device(laid_out.bucket.ops.empty(0, laid_out.bucket.compute))
        self._laid_out, self._state_of = laid_out, laid_out.bucket.arrays
        return laid_out

    def _whole_step(self, bucket: Bucket, template: StepContext, grads: Arrays, out: Arrays | None
                    ) -> tuple[Mean, Output | None]:
        """Prepare, agree, then encode, combine and update."""
        before, start, timer = self.comm.traffic, time.monotonic_ns(), template.timer
        timer.begin_step(self.step)
        measured = self._measures.due(self.step)
        with timer.phase("select"):
            prepared, ctx, output, error = self._prepare(bucket, template, grads, out, measured)
        with timer.phase("agree"):
            finite = self._agree(error, bucket)
        result = None
        if finite and prepared is not None:
            if measured:
                self._measures.begin(prepared.us, ctx)
            result = self._averaged(prepared, ctx, bucket)
        skipped = result is None
        if result is None:
            result = nothing_sent(bucket.total, ctx)._replace(sent=[])
        self._account(result, bucket, ctx, before, start, skipped)
        if measured and not skipped:
            self.stats.measures = self._measures.end(result.sent, self.stats, ctx)
        return result.mean, output

    def _prepare(self, bucket: Bucket, template: StepContext, grads: Arrays, out: Arrays | None, measured: bool
                 ) -> tuple[Prepared | None, StepContext, Output | None, Exception | None]:
        """All that a rank can do by itself, the context of the step, the memory for its mean, and this rank's error."""
        left_out, flat, ctx, output = list[Span](), list[Array](), template, None
        error: Exception | None = None
        try:
            arrays = self._read(bucket, grads)
            output = None if out is None else bucket.new_out() if out is NEW else bucket.read_out(out)
            if self._left_out:
                left_out, dense = bucket.spans_of(self._left_out)
                self._pipeline.set_aside(self._levels.spans(left_out, template), dense)
            flat = bucket.flatten(arrays)
            target = bucket.target(arrays, flat, output and output.vector)
            ctx = self._pipeline.exchange.context(template)
            ctx = self._levels.at_step(ctx, self.step, measured, target, left_out)
        except Exception as caught:
            error = caught
        if self._levels.stopped(error is not None):
            return None, template, None, error
        try:
            prepared = self._pipeline.prepare(flat, ctx)
            return prepared, ctx, output, prepared and self._pipeline.nonfinite_error(prepared, bucket, ctx)
        except Exception as caught:
            return None, template, None, caught

    def _read(self, bucket: Bucket, grads: Arrays) -> list[Array]:
        arrays = bucket.read(grads)
        if arrays is None:
            raise InvalidArgument(f"this reducer's error memory is for {bucket.signature}; make another Reducer for "
                                  "other arrays")
        return arrays

    @property
    def _arrays(self) -> str:
        """The arrays that take part in a step, for comparison with other ranks'."""
        without = f", without {', '.join(self._left_out)}" if self._left_out else ""
        return f"{self._laid_out.bucket.signature if self._laid_out else 'invalid'}{without}"

    def _agree(self, error: Exception | None, bucket: Bucket) -> bool:
        """True if this step counts; the same answer, or the same error, on every rank."""
        local_steps = self._pipeline.local_steps
        if local_steps.covers(self.step) and not self._levels.stopped(not local_steps.can_wait(error)):
            local_steps.defer(error, raises=self.nonfinite == "raise")
            return True
        try:  # patiently if the leader takes milliseconds to select
            self.comm.agree(f"step {self.step} of {self._which} for {self._arrays}", error or local_steps.deferred(),
                            bucket.n >= LONG)
            return True
        except NonFiniteGradient:
            if self.nonfinite == "raise":
                raise
            return False

    def _averaged(self, prepared: Prepared, ctx: StepContext, bucket: Bucket) -> Exchanged | None:
        """The result of a step that all ranks have agreed on; None if it is not finite and is skipped."""
        pipeline = self._pipeline
        try:
            return pipeline.run(prepared, ctx)
        except NonFiniteGradient:  # on all ranks, and nothing has changed
            other = pipeline.exchange.instead(ctx)
            try:
                if other is None:
                    self.comm.fail_together(pipeline.error_of_gradients(prepared, bucket, ctx))
                    raise
                again: Prepared | None = None
                error: Exception | None = None
                try:
                    again = pipeline.prepare(prepared.flat, other)  # sees what the codes of this try did not show
                    error = again and pipeline.nonfinite_error(again, bucket, other)
                except Exception as caught:
                    error = caught
                self.comm.fail_together(error)
                assert again is not None, "else a rank has an error"
                return self._averaged(again, other, bucket)
            except NonFiniteGradient:
                if self.nonfinite == "raise":
                    raise
                return None

    def _account(self, result: Exchanged, bucket: Bucket, ctx: StepContext, before: Traffic, start: int,
                 skipped: bool) -> None:
        """Statistics and trace of the step just done; then the next step's number."""
        now, mean = self.comm.traffic, result.mean
        dense = mean.n - bucket.n  # elements that went uncompressed
        share = bucket.n / max(1, ctx.n)  # 1 unless this rank has a slice
        counts = [dense + share * (ctx.n if sent.indices is None else sent.indices.size) for sent in result.sent]
        self.stats = StepStats(
            step=self.step,
            bytes_sent=now.bytes_sent - before.bytes_sent, bytes_received=now.bytes_received - before.bytes_received,
            density=sum(counts) / len(counts) / mean.n if mean.n and counts else 0.0,
            leader=result.leader, payload_bits=share * result.payload_bits, skipped=skipped, phases=ctx.timer.phases,
            bytes_shared=now.bytes_shared - before.bytes_shared, chosen=result.chosen, reason=result.reason,
        )
        if self._trace is not None:
            stop = time.monotonic_ns()
            ctx.timer.record()
            self._trace.event(
                "step", start, stop, step=ctx.timer.number, scheme=self._text, dtype=bucket.dtype_name, nelem=mean.n,
                nbytes_dense=mean.n * bucket.dtype.itemsize,
                nbytes_sent=self.stats.bytes_sent, nbytes_recv=self.stats.bytes_received,
            )
        self.step, self._blank = self.step + 1, False


def load_states(states: Iterable[tuple[Reducer, Mapping[str, Any]]], before: Callable[[], None] | None = None) -> None:
    """Let each reducer take its state; none does if one of them refuses its own, or ``before`` fails (collective).

    Parameters
    ----------
    states : iterable of (Reducer, state)
    before : callable, optional
        Collective; is called when no state is refused, before any is taken.

    Raises
    ------
    InvalidArgument, Disagreement
        On every rank: see ``Reducer.load_state_dict``.
    """
    states = list(states)
    for reducer, state in states:
        reducer.check_state(state)
    if before is not None:
        before()
    for reducer, state in states:
        run_collectively(reducer.comm, partial(reducer.restore, state))
