"""``Comm``: an MPI communicator whose all-reduce picks the schedule, checks the call and takes device arrays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import cast

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from ..allreduce import LOSSY
from ..errors import InvalidArgument, MpicompError
from ..ops.device import device_of, ready
from ..types import Array
from . import nccl
from .allreduce_call import AVG, Call, check_covered, plain_signature, resolve
from .bounded import BoundedCollectives
from .bounded_call import Bound
from .buffers import Buffer, bytes_of
from .collectives import flat_vector
from .engine import NO_PLAIN_CALLS, Engine, native_allreduce
from .interfaces import Recorder, Traffic
from .job import gpu_path, install_abort, launcher_mismatch
from .levels import NodeLevels, levels_of
from .nonblocking import Helper, Pending, Queued
from .safety.call_log import CallLog, logged
from .safety.revocation import announce
from .safety.watchdog import wrong_variable
from .settings import Settings, job_settings

__all__ = ["Comm", "Traffic", "gpu_path", "launcher_mismatch"]


class Comm(BoundedCollectives):
    """An MPI communicator with a faster ``Allreduce`` and the verbs the compressed exchanges are made of.

    It is a private duplicate of ``comm``, so its messages never meet those of the caller. Every method of mpi4py
    works. Creating it is collective. ``Dup``, ``Split``, ``Create_group`` and the like make a ``Comm`` with the same
    settings, whose first use is collective; pass what ``Create_cart``, other topologies and ``Merge`` make to ``Comm``.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks that take part, usually ``MPI.COMM_WORLD``.
    reproducible : bool, optional
        If True, every all-reduce combines elements in the order of the ranks, ((x0 + x1) + x2) + ..., so that the
        bits depend on the number of ranks alone and not on ``algorithm``, lengths, segments, nodes or arrival. It
        costs speed if another schedule is faster (docs/allreduce.md); lossy algorithms still round. By default the
        value of ``comm`` if that is a ``Comm``, else that of rank 0's ``MPICOMP_REPRODUCIBLE``.

    Attributes
    ----------
    recorder : object or None
        Gets an ``event("collective", ...)`` for every ``Allreduce``.

    Examples
    --------
    >>> from mpi4py import MPI
    >>> import mpicomp
    >>> comm = mpicomp.Comm(MPI.COMM_SELF, reproducible=True)
    >>> comm.size, comm.reproducible, comm.layout
    (1, True, (1, 1))
    >>> mean = comm.empty(3)
    >>> comm.Allreduce(np.ones(3, np.float32), mean, algorithm="ring")
    >>> print(mean)
    [1. 1. 1.]
    >>> comm.Allreduce(np.ones(3), mean)
    Traceback (most recent call last):
    ...
    mpicomp.errors.BufferRefused: sendbuf and recvbuf must have one dtype, got float64 and float32: convert one of them
    """

    recorder: Recorder | None = None
    _reducers = 0
    _asked_levels = False
    _plain = NO_PLAIN_CALLS
    _settings: Settings | None = None  # None: those of the environment
    _private: Engine | None = None  # None: not made yet, or freed

    def __new__(cls, comm: MPI.Comm | None = None, reproducible: bool | None = None) -> Comm:
        if comm is None:  # mpi4py makes empty ones, for the results of Dup, Split, ...
            return super().__new__(cls)
        if not isinstance(comm, MPI.Comm):
            raise InvalidArgument("Comm needs an intra-communicator of mpi4py, such as MPI.COMM_WORLD, "
                                  f"got {type(comm).__name__}")
        if not MPI.Is_initialized() or MPI.Is_finalized():  # also with sessions alone: there is no COMM_WORLD
            raise MpicompError("Comm needs MPI initialized and not finalized: call MPI.Init() before it")
        if comm.Is_inter():
            raise InvalidArgument("Comm needs an intra-communicator, got an inter-communicator: pass comm.Merge()")
        problem = launcher_mismatch()
        if problem:
            raise MpicompError(problem)
        install_abort()
        if reproducible is None and isinstance(comm, Comm):
            reproducible = comm.reproducible
        self = announce(super().__new__(cls, MPI.Intracomm(comm).Dup()))
        try:
            self._settings = job_settings(self, reproducible, wrong_variable())
        except MpicompError:  # on every rank
            self.Free()
            raise
        self._make_engine()
        return self

    def _child(self, made_by_mpi: MPI.Comm) -> MPI.Comm:
        if made_by_mpi == MPI.COMM_NULL:
            return made_by_mpi
        child = announce(super().__new__(type(self), made_by_mpi))
        child._settings = self._settings
        return child

    @property
    def _engine(self) -> Engine:
        """The private side; a child of another ``Comm`` makes it on first use (collective)."""
        return self._private or self._make_engine()

    def _compare_plain(self, text: str) -> None:
        """Compare a small all-reduce over the ranks, for ``PlainCalls``."""
        self._engine.checks.compare_plain(text)

    def _make_engine(self) -> Engine:
        settings = self._settings = self._settings or job_settings(self, None, wrong_variable())
        engine = self._private = Engine(self, settings)
        self._plain = engine.plain
        return engine

    @property
    def _log(self) -> CallLog | None:
        return self._private.log if self._private is not None else None

    def Free(self) -> None:
        """Free the communicator and its private side, after all-reduces in flight; collective."""
        self._free_private()
        super().Free()

    def Disconnect(self) -> None:
        """Free the communicator as ``Free`` does, after all its pending communication; collective."""
        self._free_private()
        super().Disconnect()

    def _free_private(self) -> None:
        if self._private is not None:
            self._private.free()
            self._private = None
            self._asked_levels = False
            del self._plain

    # -- all-reduce

    def Allreduce(
        self, sendbuf: Buffer, recvbuf: Buffer, op: MPI.Op | str = MPI.SUM, algorithm: str = "auto",
        bound: float | None = None, relative: bool = False,
    ) -> None:  # fmt: skip
        """Reduce over all ranks; every rank gets the result, with the same bits.

        Parameters
        ----------
        sendbuf, recvbuf : buffer
            Any buffer that mpi4py takes: arrays, ``[buffer, count, datatype]`` and its shorter forms, objects with the
            buffer protocol, ``__array_interface__``, DLPack or ``__cuda_array_interface__``; ``MPI.IN_PLACE`` as
            ``sendbuf`` reduces in ``recvbuf``.
        op : MPI.Op
            MPI's own call runs if the schedules do not cover it: user-defined operations, complex numbers, ... With a
            ``bound`` or a lossy algorithm, ``MPI.SUM`` or `mpicomp.AVG`.
        algorithm : str
            ``auto`` or a name of `mpicomp.allreduce.names`; for arrays in CUDA memory also ``nccl``. With a ``bound``,
            ``auto``, which takes the exact all-reduce if codes would not be faster, ``two_hops`` or ``ring``.
            ``int8``, ``int4`` and ``fp8`` are lossy: between nodes they send 8 or 4 bits per element (error:
            docs/allreduce.md).
        bound : float, optional
            Largest error e of every rank's contribution: on p ranks, an element of the sum differs from the exact one
            by at most p e, an element of the mean by at most e, plus one rounding to the buffer's type. For float32
            and float64 (docs/bounded.md).
        relative : bool
            If True, e is ``bound`` times the field's range: max - min of the finite values of all ranks.

        Raises
        ------
        BufferRefused
            A buffer cannot be used as given.
        Disagreement
            The ranks gave different arguments; the buffers are unchanged. The first 64 calls are checked, then one
            in 64 and the first of each kind; ``MPICOMP_CHECK=1`` checks all, ``MPICOMP_CHECK=0`` none.
        """
        if bound is not None or relative or (isinstance(op, str) and algorithm not in LOSSY):
            self._bounded_allreduce(sendbuf, recvbuf, op, Bound(bound, relative, algorithm))
        elif algorithm != "auto" or self.recorder is not None:
            self._allreduce(sendbuf, recvbuf, op, algorithm)
        elif not self._plain.run(self, sendbuf, recvbuf, op):
            self._allreduce(sendbuf, recvbuf, op, algorithm)
            self._plain.learn(sendbuf, recvbuf, op, plain_signature)

    def _allreduce(self, sendbuf: Buffer, recvbuf: Buffer, op: MPI.Op | str, algorithm: str) -> None:
        engine = self._engine
        log = engine.log
        if log is None:
            return self._checked_allreduce(engine, sendbuf, recvbuf, op, algorithm)
        try:
            log.begin("Allreduce")
            self._checked_allreduce(engine, sendbuf, recvbuf, op, algorithm)
        finally:
            log.end()

    def _checked_allreduce(self, engine: Engine, sendbuf: Buffer, recvbuf: Buffer, op: MPI.Op | str, algorithm: str
                           ) -> None:  # fmt: skip
        checks, recorder = engine.checks, self.recorder
        compared = checks.next_call()
        call: Call | None = None
        key: tuple[object, ...] = ()
        error: Exception | None = None
        try:
            call = resolve(sendbuf, recvbuf, op, algorithm, engine.settings.gpu_path)
            if engine.settings.reproducible:
                check_covered(call)
            key = call.key()
            compared = compared or checks.is_new(key)
        except Exception as caught:
            if not compared:
                raise
            error = caught
        if engine.log is not None:
            engine.log.note(*key)
        if compared:
            with recorder.region("agree") if recorder else nullcontext():  # ranks wait here, too
                checks.compare_next(call.signature() if call else "refused", error)
        assert call is not None, "otherwise the comparison has raised its error"
        if compared:
            checks.learn(key)
        if recorder is None:
            self._run(engine, call, sendbuf, recvbuf, op)
            return
        before, start = engine.traffic, recorder.now()
        around, recorder.doing = recorder.doing, ("collective", -1, start)
        try:
            self._run(engine, call, sendbuf, recvbuf, op)
        finally:
            recorder.doing = around
        self._record(engine, recorder, call, start, engine.traffic - before)

    def _run(self, engine: Engine, call: Call, sendbuf: Buffer, recvbuf: Buffer, op: MPI.Op | str) -> None:
        source, target, link = call.source, call.target, engine.link
        schedule = call.schedule(engine.default, engine.reduction)
        by_mpi = schedule == "native" and call.op != AVG
        if by_mpi:
            link.check()
        if target is None:
            native_allreduce(self, sendbuf, recvbuf, op)
        elif by_mpi and target.device is None and target.array.size <= link.max_count:
            link.count_native(target.array.nbytes)
            out = MPI.IN_PLACE if source is None else source.plain()
            native_allreduce(self, out, target.plain(), op)
        else:
            name, factor = ("sum", 1 / link.size) if call.op == AVG else (call.op, 1.0)
            engine.reduction.run(source, target, name, schedule, factor)
            ready(target.array)  # for readers on another stream

    def _record(self, engine: Engine, recorder: Recorder, call: Call, start: int, used: Traffic) -> None:
        array, dtype = (call.target.array, call.target.name) if call.target else (np.empty(0), "")
        recorder.event(
            "collective", start, algo=call.schedule(engine.default, engine.reduction), op=call.op, dtype=dtype,
            nelem=array.size, nbytes_dense=array.nbytes,
            nbytes_sent=used.bytes_sent, nbytes_recv=used.bytes_received,
        )  # fmt: skip

    # -- all-reduces in flight

    def Iallreduce(  # type: ignore[override]  # returns a request of our own
        self, sendbuf: Buffer, recvbuf: Buffer, op: MPI.Op | str = MPI.SUM, algorithm: str = "auto"
    ) -> Pending:
        """Start an `Allreduce` and return at once (the first time: when all ranks have called it).

        The result has ``Wait``, ``Test``, ``wait`` and ``test`` of an MPI request, which raise the errors of the call.
        It is no ``MPI.Request``: call ``Wait`` of each instead of ``MPI.Request.Waitall``. Several may be in flight.
        They run in the order in which they were started, which must be the same on every rank: in a helper thread if
        MPI provides MPI_THREAD_MULTIPLE, else during ``Test`` and ``Wait``.
        """
        return self._in_flight.start(sendbuf, recvbuf, op, algorithm)

    def start_allreduce(self, x: Array, algorithm: str = "auto", kind: str | None = None, factor: float = 1.0,
                        source: Array | None = None) -> Pending:
        """Start a sum into the array ``x`` as `allreduce_in_place` does, or `allreduce_from` a ``source``.

        A ``source`` has no ``kind``. For ``wait_for``; otherwise as `Iallreduce`, but for device arrays that go by
        NCCL: those are queued on a stream of their own.
        """
        device = device_of(x)
        if device is None or self._schedule(flat_vector(x, "x", kind), "sum", algorithm) != nccl.NAME:
            return self._in_flight.start_sum(x, algorithm, kind, factor, source)
        if source is None:
            return Queued(device, x, lambda: self.allreduce_in_place(x, algorithm, "sum", kind, factor))
        return Queued(device, x, lambda: self.allreduce_from(source, x, algorithm, factor))

    @property
    def flies(self) -> bool:
        """True if several all-reduces in flight can be faster than one long one; the first use is collective.

        False if they would run at once, and on the communicator of a thread that is a helper itself.
        """
        link = self._engine.link
        return link.size > 1 and not link.patient and self._in_flight.threaded

    @property
    def _in_flight(self) -> Helper:
        """Helper that runs all-reduces in flight; the first use is collective."""
        engine = self._engine
        if engine.helper is not None:
            return engine.helper
        twin = self.Dup()
        return engine.add_helper(twin, twin._engine)

    # -- memory and facts

    @logged
    def empty(self, shape: int | Sequence[int], dtype: npt.DTypeLike = np.float32) -> np.ndarray:
        """Return a new array in memory that the ranks of this node share; collective.

        ``node_shared`` reads and writes such arrays in place, without a copy: fastest if both buffers of an
        ``Allreduce`` were made here, on all ranks. Make them once and keep them. The memory lasts as long as the
        array or the communicator, whichever is longer.

        Raises
        ------
        InvalidArgument
            On every rank: no array of plain values has this shape or dtype.
        MpicompError
            On every rank: some node does not have enough memory to share.
        """
        link = self._engine.link
        array: np.ndarray | None = None
        error: MpicompError | None = None
        try:
            nbytes = bytes_of(shape, dtype)
        except InvalidArgument as caught:
            error = caught
        self.fail_together(error)
        node = link.node
        if node.problem is not None:
            return np.empty(shape, dtype)
        try:
            array = node.empty(nbytes).view(dtype).reshape(shape)
        except MpicompError as caught:
            error = caught
        self.fail_together(error)
        assert array is not None, "else an error was raised"
        return array

    @property
    def reproducible(self) -> bool:
        """True if all-reduces give the same bits with every schedule."""
        return (self._settings or self._engine.settings).reproducible

    @property
    def log(self) -> CallLog | None:
        """Log of this rank's collective calls; None if neither a timeout nor fault injection is configured."""
        return self._engine.log

    @property
    def layout(self) -> tuple[int, int]:
        """Ranks on the fullest node, and number of nodes, by which ``auto`` chooses from its table."""
        link = self._engine.link
        return link.ranks_per_node, link.nodes

    @property
    def levels(self) -> NodeLevels | None:
        """The ranks of nodes and those at one place on all nodes; None if there is one level.

        The first use is collective.
        """
        engine = self._engine
        if not self._asked_levels:
            engine.levels, self._asked_levels = levels_of(engine.link, self._beside), True
        return engine.levels

    def _beside(self, place: int) -> Comm:
        """Return a communicator of the ranks that give the same ``place``, each taken for a node (collective)."""
        child = cast(Comm, self.Split(place, self.rank))
        assert child._settings is not None, "that of its parent"
        child._settings = child._settings._replace(node_limit=1)
        return child

    @property
    def gpu_path(self) -> tuple[str, str]:
        """Path of device arrays to MPI on all ranks, ``direct``, ``staged`` or ``none`` (refused), and its reason."""
        return (self._settings or self._engine.settings).gpu_path

    @property
    def traffic(self) -> Traffic:
        """Bytes and messages that this rank has exchanged by this communicator's own verbs and ``Allreduce``."""
        engine = self._private
        if engine is None:
            return Traffic()
        used = engine.traffic if engine.helper is None else engine.traffic + engine.helper.comm.traffic
        return used if engine.levels is None else used + engine.levels.across.traffic

    def count_reducer(self) -> int:
        """Count one more reducer on this communicator and return their number; local."""
        self._reducers += 1
        return self._reducers
