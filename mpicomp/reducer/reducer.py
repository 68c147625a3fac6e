"""The Reducer: runs one scheme, step after step, and owns its state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .. import allreduce
from ..comm.safety.collective_errors import together
from ..errors import InvalidArgument, NonFiniteGradient
from ..ops.device import at_home
from ..schemes import compatibility
from ..schemes.registry import Scheme
from ..types import Array, Compensated, Exchanged, Mean, StepStats
from . import saved_state
from .layout import Arrays, Bucket
from .measures import Measures
from .run_step import Pipeline
from .step import Step
from .workers import Workers

LONG = 1 << 20  # elements


class Reducer:
    """Average gradients over all ranks by a scheme, with the unsent part kept in error memory.

    Every step is ``compensate -> compress -> exchange -> update``. Before anything is sent, ranks compare what they
    are about to do (step, scheme, shapes) and whether their gradients are finite. A step that is refused or skipped
    leaves the error memory as it was.

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
        Of some arrays by name (``"gradient 0"`` and so on in a list), for schemes with a density and
        ``layers=per-tensor``; 1 sends an array uncompressed. See :func:`mpicomp.schemes.schedules.densities_by_flops`.
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

    def __init__(self, comm: Any, scheme: str | Scheme, *, workers: int = 1, algorithm: str = "auto",
                 nonfinite: str = "raise", densities: Mapping[str, float] | None = None, measures: int = 0,
                 trace: Any = None) -> None:
        self.comm, self.workers, self.nonfinite = comm, workers, nonfinite
        error: Exception | None = None
        try:
            self._densities = dict(densities or {})
            trace = trace if trace is not None and trace.enabled else None
            self.scheme = Scheme.parse(scheme)
            compatibility.check_arguments(workers, nonfinite, self._densities, measures, self.scheme)
            allreduce.check_asked(algorithm)
        except Exception as caught:  # whatever it is: the other ranks wait for the verdict, here and below
            error = caught
        comm.agree(f"Reducer {scheme} algorithm={algorithm} nonfinite={nonfinite} densities={densities or {}} "
                   f"measures={measures}", error)
        self._text, self._place = str(self.scheme), {"rank": comm.rank, "ranks": comm.size}
        comm.reducers += 1  # where ranks compare, two of one scheme for equal arrays must not be taken for each other
        self._which = self._text if comm.reducers == 1 else f"{self._text} (reducer {comm.reducers})"
        compatibility.warn(self.scheme, comm.rank)
        self._make_parts(Workers.of_all(comm, workers), algorithm, measures, trace)
        self._untold: Exception | None = None  # of a silent step
        self._left_out: list[str] = []  # arrays that take no part in a step
        self.step, self.stats = 0, StepStats()

    def _make_parts(self, everyone: Workers, algorithm: str, measures: int, trace: Any) -> None:
        """The scheme's parts and what runs them, which know no arrays yet."""
        parts = self.scheme.parts(self.workers)
        self._step = Step(self.comm, everyone, parts, self.scheme.options["seed"], algorithm, trace)
        self._pipeline = Pipeline(parts, self._step, check_finite=self.nonfinite != "allow")
        self._measures = Measures(measures, self._step, parts.memories)
        self._bucket: Bucket | None = None

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
            mean = self._run(grads, out)
            target = None if out is None else self._laid_out.flat_view(out)
            if out is not None and target is None and mean.indices is not None:
                return self._laid_out.spread(mean, out)
            dense = mean.dense(self._step.ops, target)
            if target is not None:
                return out
            if out is None and mean.indices is None:
                dense = dense.copy()  # these values belong to the reducer
            return self._laid_out.unflatten(dense, out, grads)

    def reduce_sparse(self, grads: Arrays) -> Mean:
        """The mean as ``(indices, values, n)`` over the flattened arrays (collective).

        Where a scheme sends everything, ``indices`` is None. The arrays are good until the next step.
        """
        return self._run(grads, None)

    @contextmanager
    def leaving_out(self, names: Iterable[str]) -> Iterator[None]:
        """Within the block some arrays take no part in a step: their error memory stays as it is.

        Parameters
        ----------
        names : iterable of str
            The same on all ranks. The gradients of these arrays must be zero; their means have no meaning.
        """
        self._left_out = sorted(names)
        try:
            yield
        finally:
            self._left_out = []

    def memory_norm(self) -> float:
        """Euclidean norm of this rank's error memory, over all its workers."""
        ops = self._step.ops
        return 0.0 if ops is None else sum(memory.squared_norm(ops) for memory in self._pipeline.memories) ** 0.5

    def set_shift(self, arrays: Arrays) -> None:
        """The vectors that gradients are taken relative to, with ``memory=shifted`` (collective).

        Parameters
        ----------
        arrays : like the gradients passed to ``reduce``
            For each of this rank's workers its own, for example its gradient at the optimum; copied.
        """
        self._laying_out(self._set_shift, arrays)

    def _set_shift(self, arrays: Arrays) -> None:
        error, flat = None, []
        try:
            if not hasattr(self._pipeline.memories[0], "set_shift"):
                raise InvalidArgument(f"a shift needs a scheme with memory=shifted, got {self._text}")
            flat = self._begin(arrays).flatten(arrays, self._step.scratch)
            if any(self._step.overflows(Compensated(None, one)) for one in flat):
                raise NonFiniteGradient(f"a shift must hold magnitudes below {self._step.limit:g} alone, in "
                                        f"{self._step.dtype}: it is kept from step to step")
        except Exception as caught:
            error = caught
        self.comm.agree(f"shift of step {self.step} of {self._which} for {self._known}", error)
        self._pipeline.set_shift(flat)

    def learning_rate_dropped(self) -> None:
        """Tell the schedule of densities that training has come to another phase (collective; see ``accordion``)."""
        self.comm.agree(f"the learning rate drops before step {self.step} of {self._which}")
        self._pipeline.schedule.learning_rate_dropped()

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: step, error memory, and what exchange and schedule keep; NumPy copies."""
        ops = self._step.ops
        kept = {prefix + name: array for prefix, part in self._stateful() for name, array in part.state(ops).items()}
        return {"scheme": str(self.scheme), "step": self.step, "workers": self.workers, **self._place, **kept}

    def _stateful(self) -> Iterator[tuple[str, Any]]:
        """What has state, and how its names begin."""
        yield from self._pipeline.stateful()
        yield "measures/", self._measures

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on, bit for bit, where ``state_dict`` was taken (collective).

        A state without the velocity of arrays that go dense, as it was saved before there was one, begins it at zero,
        and a ``SchemeWarning`` says so.

        Raises
        ------
        InvalidArgument
            On every rank, if the state is of another scheme or another number of workers, or has error memories of
            another rank or another number of ranks (``mpicomp.checkpoint`` redistributes them).
        Disagreement
            On every rank, if ranks' states are of different steps, or one lacks what another has.
        """
        saved_state.agree_on(self.comm, state, self.scheme, self.workers, self._bucket)
        together(self.comm, lambda: self._load(state))

    def _load(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])
        for prefix, part in self._stateful():
            part.load(saved_state.of_part(prefix, state))
        if self._bucket is not None:
            self._pipeline.check(self._bucket, self.step)

    def _run(self, grads: Arrays, out: Arrays | None) -> Mean:
        """One step, in the log of calls where there is one."""
        log = self.comm.log
        if log is None:
            return self._laying_out(self._run_step, grads, out)
        try:
            log.begin("step", self.step, "of", self._text)
            return self._laying_out(self._run_step, grads, out)
        finally:
            log.end()

    def _laying_out(self, work: Callable[..., Any], *arrays: Arrays | None) -> Any:
        """Do what lays out the arrays if none were: where that is refused, nothing of the layout stays."""
        state = self.state_dict() if self._bucket is None else None
        try:
            with at_home(arrays):
                return work(*arrays)
        except Exception:
            if state is not None:
                self._make_parts(self._step.workers, self._step.algorithm, self._measures.interval, self._step.trace)
                self._load(state)
            raise

    def _run_step(self, grads: Arrays, out: Arrays | None) -> Mean:
        """One step, around which the state of arrays that take no part in it is set aside."""
        try:
            return self._whole_step(grads, out)
        finally:
            if self._left_out:
                self._pipeline.put_back()

    def _whole_step(self, grads: Arrays, out: Arrays | None) -> Mean:
        """What a rank can do alone, one agreement, then compress, exchange and update."""
        step, before, start = self._step, self.comm.traffic, time.monotonic_ns()
        with step.timed("select"):
            flat, workers, error = self._select(grads, out)
        with step.timed("agree"):
            finite = self._agree(error)
        measured = finite and self._measures.begin(workers)
        result = self._averaged(flat, workers) if finite else None
        skipped = result is None
        result = result or self._pipeline.nothing(self._laid_out.total)
        self._account(result, before, start, skipped)
        if measured and not skipped:
            self.stats.measures = self._measures.end(result.sent, self.stats)
        return result.mean

    def _averaged(self, flat: list[Array], workers: list[Compensated]) -> Exchanged | None:
        """The result of a step that all ranks have agreed on; None if its mean overflows and is skipped."""
        try:
            return self._pipeline.run(flat, workers)
        except NonFiniteGradient:
            if self.nonfinite == "raise":
                raise
            return None

    def _select(self, grads: Arrays, out: Arrays | None) -> tuple[list[Array], list[Compensated], Exception | None]:
        """All that a rank can do by itself: the compensated gradients, what it selects, and what is wrong."""
        try:
            bucket = self._begin(grads, out)
            if self._left_out:
                self._pipeline.set_aside(bucket.spans_of(self._left_out))
            flat = bucket.flatten(grads, self._step.scratch)
            self._step.target = bucket.target(grads, flat, out)
            workers, found = self._pipeline.select(flat)
            return flat, workers, self._pipeline.nonfinite_error(flat, found, bucket)
        except Exception as error:
            return [], [], error

    def _begin(self, grads: Arrays, out: Arrays | None = None) -> Bucket:
        """Begin the step, with the layout of ``grads``."""
        self._bucket = bucket = self._layout(grads, out)
        per_tensor = self.scheme.options["layers"] == "per-tensor"
        spans = [tensor[:2] for tensor in bucket.tensors] if per_tensor else [(0, bucket.n)]
        self._step.begin(self.step, bucket, spans, bucket.densities if per_tensor else [None])
        return bucket

    @property
    def _known(self) -> str:
        without = f", without {', '.join(self._left_out)}" if self._left_out else ""
        return f"{self._bucket.signature}{without}" if self._bucket else "invalid"

    def _agree(self, error: Exception | None) -> bool:
        """Whether this step counts; the same answer, or the same error, on every rank."""
        if self._pipeline.silent(self.step) and (error is None or isinstance(error, NonFiniteGradient)):
            self._untold = self._untold or (error if self.nonfinite == "raise" else None)
            return True
        error, self._untold = error or self._untold, None
        try:  # patiently where the leader takes milliseconds to select
            self.comm.agree(f"step {self.step} of {self._which} for {self._known}", error, self._step.n >= LONG)
            return True
        except NonFiniteGradient:
            if self.nonfinite == "raise":
                raise
            return False

    @property
    def _laid_out(self) -> Bucket:
        assert self._bucket is not None, "a step has begun"
        return self._bucket

    def _layout(self, grads: Arrays, out: Arrays | None) -> Bucket:
        bucket = self._bucket
        if bucket is None:
            bucket = Bucket(grads, self.workers, self.scheme.options["dense"], self._densities)
            allreduce.check_home(self._step.algorithm, bucket.ops.empty(0, bucket.compute))
            self._pipeline.check(bucket, self.step)
        elif not bucket.fits(grads):
            raise InvalidArgument(f"this reducer's error memory is for {bucket.signature}; make another Reducer for "
                                  "other arrays")
        if out is not None:
            bucket.check_out(out)
        return bucket

    def _account(self, result: Exchanged, before: Any, start: int, skipped: bool) -> None:
        """Statistics and trace of the step just done; then the next step's number."""
        now, mean = self.comm.traffic, result.mean
        dense = mean.n - self._step.n  # elements that went uncompressed
        counts = [dense + (self._step.n if sent.indices is None else sent.indices.size) for sent in result.sent]
        self.stats = StepStats(
            step=self.step,
            bytes_sent=now.bytes_sent - before.bytes_sent, bytes_received=now.bytes_received - before.bytes_received,
            density=sum(counts) / len(counts) / mean.n if mean.n and counts else 0.0,
            leader=result.leader, payload_bits=result.payload_bits, skipped=skipped, seconds=self._step.seconds,
            bytes_shared=now.bytes_shared - before.bytes_shared,
        )
        if self._step.trace is not None:
            stop = time.monotonic_ns()
            self._step.record()
            self._step.trace.event(
                "step", start, stop, step=self.step, scheme=self._text, dtype=self._laid_out.dtype_name, nelem=mean.n,
                nbytes_dense=mean.n * self._laid_out.dtype.itemsize,
                nbytes_sent=self.stats.bytes_sent, nbytes_recv=self.stats.bytes_received,
            )
        self.step += 1
