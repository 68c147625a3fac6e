"""``Comm``: an MPI communicator whose all-reduce picks the schedule, checks the call and takes device arrays."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Lock
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import allreduce
from ..allreduce.cost import least_bytes
from ..errors import InvalidArgument, MpicompError
from ..ops.device import ready
from ..ops.node_shared import PlainCalls
from .allreduce_call import Call, check_covered, plain_signature, resolve
from .buffers import bytes_of
from .collectives import Verbs
from .inherited import Inherited
from .job import gpu_path, install_abort, launcher_mismatch
from .nonblocking import InFlight
from .point_to_point import PointToPoint
from .reduction import Reduction
from .safety.agreement import Agreement
from .safety.call_log import Calls, logged
from .safety.revocation import made
from .safety.watchdog import Watched, log_for, wrong_variable
from .settings import Settings, job_settings
from .transport import Link, Traffic

__all__ = ["Comm", "Traffic", "gpu_path", "launcher_mismatch"]

IN_PLACE = MPI.IN_PLACE
_native_allreduce = MPI.Intracomm.Allreduce


class Comm(Verbs, InFlight, PointToPoint, Inherited):  # type: ignore[misc]  # Iallreduce gives a request of our own
    """MPI communicator with a faster ``Allreduce``, and the collectives that compressed exchanges need.

    It is a private duplicate of ``comm``, so its messages never meet those of the caller. Every method of mpi4py
    works. Creating it is collective. ``Dup``, ``Split``, ``Create_group`` and the like make a ``Comm`` with the same
    settings, whose first use is collective; pass what ``Create_cart``, other topologies and ``Merge`` make to ``Comm``.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks that take part, usually ``MPI.COMM_WORLD``.
    reproducible : bool, optional
        Whether every all-reduce combines elements in the order of the ranks, ((x0 + x1) + x2) + ..., so that the
        bits depend on the number of ranks alone and not on ``algorithm``, lengths, segments, nodes or arrival. It
        costs speed wherever another schedule would be faster (docs/allreduce.md). Without it, a ``comm`` that is a
        ``Comm`` decides, else rank 0's ``MPICOMP_REPRODUCIBLE=1``.

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

    recorder: Any = None
    reducers = 0  # made on it so far
    _counting = Lock()
    _plain = PlainCalls(_native_allreduce, IN_PLACE)  # of communicators without a private side: lets none pass
    _watched: Watched | None = None
    _settings: Settings | None = None  # None: those of the environment
    _counted: tuple[int, int] = 0, 0  # bytes of vectors that MPI got, and the bytes sent that they are counted as

    def __new__(cls, comm: MPI.Comm | None = None, reproducible: bool | None = None) -> Comm:
        if comm is None:  # mpi4py makes empty ones, for the results of Dup, Split, ...
            return super().__new__(cls)
        if comm.Is_inter():
            raise InvalidArgument("Comm needs an intra-communicator, got an inter-communicator: pass comm.Merge()")
        problem = launcher_mismatch()
        if problem:
            raise MpicompError(problem)
        install_abort()
        if reproducible is None and isinstance(comm, Comm):
            reproducible = comm.reproducible
        self = made(super().__new__(cls, MPI.Intracomm(comm).Dup()))
        self._settings = job_settings(self, reproducible, wrong_variable())
        self._open()
        return self

    def _child(self, made_by_mpi: MPI.Comm) -> MPI.Comm:
        if made_by_mpi == MPI.COMM_NULL:
            return made_by_mpi
        child = made(super().__new__(type(self), made_by_mpi))
        child._settings = self._settings
        return child

    def _open(self) -> Link:
        """Make the private side: on creation, or on first use after Dup, Split, ...; collective."""
        settings = self._settings = self._settings or job_settings(self, None, wrong_variable())
        self._link = link = Link(made(MPI.Intracomm(self).Dup()), settings)
        self._counted = 0, 0
        self._log, self._watched = log_for(link.comm)
        link.log = self._log
        self._plain = plain = PlainCalls(_native_allreduce, IN_PLACE)
        link.on_leave = self._leave
        if self._log is not None:
            self._log.plain, plain.logged = plain, True
        self._scratch: dict[Any, Any] = {}
        self._reduction = Reduction(link, self._scratch)
        self._forget_calls()
        self._agreement = Agreement(link.rank, link.extremes, self._gather_bytes)
        self._default = allreduce.check_name(settings.algorithm)
        if self._default == "auto" and not link.reproducible and (self._log is None or self._log.plain_calls):
            # An array of so many bytes is in no case too long for one call of MPI's.
            plain.limit = min(link.rows["cpu"].native_limit(), link.max_count)
        self._set_checks(settings.check, link.size)
        return link

    def _leave(self) -> None:
        """A rank has left a collective in the middle: no call may take the short way past the link."""
        self._plain.limit = -1
        if self._watched is not None:  # MPI's own calls, in which others may be, cannot hear of it
            self._watched.broken()

    def Free(self) -> None:
        """Free the communicator, its private duplicate and the scratch memory; collective.

        All-reduces that were started are waited for.
        """
        if self._helper is not None:
            self._helper.free()
            self._helper = None
        if self._link is not None:
            if self._watched is not None:
                self._watched.leave()
            self._link.free()
            self._link, self._scratch = None, {}
            self._forget_calls()
            del self._plain
        super().Free()

    # -- all-reduce

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, algorithm: str = "auto") -> None:
        """Reduce over all ranks; every rank gets the result, with the same bits.

        Parameters
        ----------
        sendbuf, recvbuf : buffer
            Whatever mpi4py takes: arrays, ``[buffer, count, datatype]`` and its shorter forms, objects with the
            buffer protocol, ``__array_interface__``, DLPack or ``__cuda_array_interface__``; ``MPI.IN_PLACE`` as
            ``sendbuf`` reduces in ``recvbuf``.
        op : MPI.Op
            MPI's own call does what the schedules do not cover: user-defined operations, complex numbers, ...
        algorithm : str
            ``auto`` or a name of `mpicomp.allreduce.names`; for arrays in CUDA memory also ``nccl``.

        Raises
        ------
        BufferRefused
            A buffer cannot be used as given.
        Disagreement
            The ranks gave different arguments. The first 64 calls are checked, then one in 64 and those unlike
            any before; ``MPICOMP_CHECK=1`` checks all, ``MPICOMP_CHECK=0`` none. The buffers are left as they were.
        """
        if algorithm != "auto" or self.recorder is not None:
            self._allreduce(sendbuf, recvbuf, op, algorithm)
        elif not self._plain.run(self, sendbuf, recvbuf, op):
            self._allreduce(sendbuf, recvbuf, op, algorithm)
            self._plain.learn(sendbuf, recvbuf, op, plain_signature)

    def _allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op, algorithm: str) -> None:
        if self._link is None:
            self._open()
        log = self._log
        if log is None:
            return self._checked_allreduce(sendbuf, recvbuf, op, algorithm)
        try:
            log.begin("Allreduce")
            self._checked_allreduce(sendbuf, recvbuf, op, algorithm)
        finally:
            log.end()

    def _checked_allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op, algorithm: str) -> None:
        checked, plain = self._next_call(), self._plain
        call: Call | None = None
        key: tuple[Any, ...] | None = None
        error: Exception | None = None
        try:
            call = resolve(sendbuf, recvbuf, op, algorithm, self.gpu_path)
            if self.reproducible:
                check_covered(call)
            key = call.key()
            checked = checked or (plain.mask != -1 and key not in self._known)
        except Exception as caught:
            if not checked:
                raise
            error = caught
        if self._log is not None and key is not None:
            self._log.note(*key)
        if checked:
            described = call.signature() if call else "refused"
            with self.recorder.region("agree") if self.recorder else nullcontext():  # ranks wait here, too
                self._compare(f"Allreduce call {plain.calls}: {described}", error)
        assert call is not None and key is not None, "else it has been refused"
        if checked:
            self._learn(key)
        if self.recorder is None:
            self._run(call, sendbuf, recvbuf, op)
            return
        before, start = self._own_traffic(), self.recorder.now()
        around, self.recorder.doing = self.recorder.doing, ("collective", -1, start)
        self._run(call, sendbuf, recvbuf, op)
        self.recorder.doing = around
        self._record(call, start, self._own_traffic() - before)

    def _run(self, call: Call, sendbuf: Any, recvbuf: Any, op: MPI.Op) -> None:
        source, target, link = call.source, call.target, self._link or self._open()
        schedule = call.schedule(self._default, link)
        if schedule == "native":
            link.check()
        if target is None:
            _native_allreduce(self, sendbuf, recvbuf, op)
        elif schedule == "native" and target.device is None and target.array.size <= link.max_count:
            self._plain.handed_over += target.array.nbytes
            out = MPI.IN_PLACE if source is None else source.plain()
            _native_allreduce(self, out, target.plain(), op)
        else:
            self._reduction.run(source, target, call.op, schedule)
            ready(target.array)  # for whoever reads it on another stream

    def _record(self, call: Call, start: int, used: Traffic) -> None:
        array, dtype = (call.target.array, call.target.name) if call.target else (np.empty(0), "")
        self.recorder.event(
            "collective", start, algo=call.schedule(self._default, self._link or self._open()), op=call.op, dtype=dtype,
            nelem=array.size, nbytes_dense=array.nbytes,
            nbytes_sent=used.bytes_sent, nbytes_recv=used.bytes_received,
        )  # fmt: skip

    @logged
    def empty(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
        """A new array in memory that the ranks of this node share; collective.

        ``node_shared`` reads and writes such arrays where they are, without a copy: fastest when both buffers of an
        ``Allreduce`` were made here, on all ranks. Make them once and keep them. The memory goes with the array
        and the communicator, whichever lasts longer.

        Raises
        ------
        InvalidArgument
            On every rank: a shape or dtype that no array of plain values can have.
        MpicompError
            On every rank: some node does not have so much memory to share.
        """
        link = self._link or self._open()
        array: np.ndarray | None = None
        error: MpicompError | None = None
        try:
            nbytes = bytes_of(shape, dtype)
        except InvalidArgument as caught:
            error = caught
        self.fail_together(error)
        if link.node.problem is not None:
            return np.empty(shape, dtype)
        try:
            array = link.node.empty(nbytes).view(dtype).reshape(shape)
        except MpicompError as caught:
            error = caught
        self.fail_together(error)
        assert array is not None, "else an error was raised"
        return array

    @property
    def reproducible(self) -> bool:
        """Whether all-reduces give the same bits whatever the schedule."""
        return (self._settings or self._open().settings).reproducible

    @property
    def log(self) -> Calls | None:
        """What this rank does and did last; None where nobody wants to know."""
        if self._link is None:
            self._open()
        return self._log

    @property
    def layout(self) -> tuple[int, int]:
        """Ranks on the fullest node, and number of nodes, by which ``auto`` chooses from its table."""
        link = self._link or self._open()
        return link.ranks_per_node, link.nodes

    @property
    def gpu_path(self) -> tuple[str, str]:
        """How arrays in device memory reach MPI on all ranks, and why: ``direct``, ``staged`` or ``none`` (refused)."""
        return (self._settings or self._open().settings).gpu_path

    @property
    def traffic(self) -> Traffic:
        """What this rank has sent and received through this communicator's own verbs and ``Allreduce``."""
        own = self._own_traffic()
        return own + self._helper.comm.traffic if self._helper else own

    def _own_traffic(self) -> Traffic:
        """Without that of all-reduces in flight."""
        if self._link is None:
            return Traffic()
        # Another thread may use this communicator, or read this: what it counts is read here, not changed.
        with self._counting:
            handed_over, sent = self._plain.handed_over, self._counted[1]
            sent += least_bytes(handed_over - self._counted[0], self._link.size)
            self._counted = handed_over, sent
        return self._link.traffic(sent)
