"""``Comm``: an MPI communicator whose all-reduce picks the schedule, checks the call and takes device arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from mpi4py import MPI

from . import allreduce
from .agreement import Agreement
from .broadcast import broadcast
from .buffers import Vector, check_flat, is_plain, typed
from .call import Call, resolve, schedule
from .device import device_of
from .errors import BufferRefused, InvalidArgument, MpicompError
from .gather_to_all import gather_to_all
from .job import gpu_path, install_abort, launcher_mismatch
from .link import Link, Traffic
from .ops import ops_for
from .point_to_point import PointToPoint
from .staging import Stage

__all__ = ["Comm", "Traffic", "gpu_path", "launcher_mismatch"]

CHECKED_CALLS = 64  # so many first calls are all checked for agreement, then one in as many

_native_allreduce = MPI.Intracomm.Allreduce


class Comm(PointToPoint, MPI.Intracomm):
    """An MPI communicator with a faster ``Allreduce`` and the verbs the compressed exchanges are made of.

    It is a private duplicate of ``comm``, so its messages never meet those of the caller. Every method of mpi4py
    works. Creating it is collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks that take part, usually ``MPI.COMM_WORLD``.

    Attributes
    ----------
    recorder : object or None
        Gets an ``event("collective", ...)`` for every ``Allreduce``.
    """

    recorder: Any = None
    _link: Link | None = None
    _calls = 0
    _mask = 0  # a call is checked for agreement when ``calls & mask`` is 0
    _small = -1  # bytes up to which ``auto`` hands a plain array straight to MPI; -1 until the private side is open
    _handed_over = 0  # bytes of the vectors that took the fast path

    def __new__(cls, comm: MPI.Comm | None = None) -> Comm:
        if comm is None:  # mpi4py makes empty ones, for the results of Dup, Split, ...
            return super().__new__(cls)
        if comm.Is_inter():
            raise InvalidArgument("Comm needs an intra-communicator, got an inter-communicator: pass comm.Merge()")
        problem = launcher_mismatch()
        if problem:
            raise MpicompError(problem)
        install_abort()
        self = super().__new__(cls, comm.Dup())
        self._open()
        return self

    def _open(self) -> Link:
        """Make the private side: on creation, or on first use after Dup, Split, ...; collective."""
        self._link = link = Link(MPI.Intracomm(self).Dup())
        self._scratch: dict[Any, Any] = {}
        self._agreement = Agreement(link.rank, link.reduce_min, self._gather_bytes)
        self._default = allreduce.check_name(os.environ.get("MPICOMP_ALGORITHM", "auto"))
        if self._default == "auto":  # an array of so many bytes is in no case too long for one call of MPI's
            self._small = min(allreduce.native_limit(link.size, link.one_node), link.max_count)
        check = os.environ.get("MPICOMP_CHECK", "auto")
        self._mask = -1 if check == "0" or link.size == 1 else 0
        self._later_mask = 0 if check == "1" else CHECKED_CALLS - 1
        return link

    def Free(self) -> None:
        """Free the communicator, its private duplicate and the scratch memory; collective."""
        if self._link is not None:
            self._link.comm.Free()
            self._link, self._scratch, self._small = None, {}, -1
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
            ``auto`` or a name of `mpicomp.allreduce.names`.

        Raises
        ------
        BufferRefused
            A buffer cannot be used as given.
        Disagreement
            The ranks gave different arguments. The first 64 calls are checked, then one in 64;
            ``MPICOMP_CHECK=1`` checks all, ``MPICOMP_CHECK=0`` none. The buffers are left as they were.
        """
        calls = self._calls = self._calls + 1
        if (
            calls & self._mask
            and type(recvbuf) is np.ndarray
            and recvbuf.nbytes <= self._small
            and algorithm == "auto"
            and self.recorder is None
            and (sendbuf is MPI.IN_PLACE or type(sendbuf) is np.ndarray)
            and is_plain(sendbuf, recvbuf)
        ):
            self._handed_over += recvbuf.nbytes
            return _native_allreduce(self, sendbuf, recvbuf, op)
        return self._allreduce(sendbuf, recvbuf, op, algorithm)

    def _allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op, algorithm: str) -> None:
        if self._link is None:
            self._open()
        checked = not self._calls & self._mask
        call, error = None, None
        try:
            call = resolve(sendbuf, recvbuf, op, algorithm)
        except Exception as caught:
            if not checked:
                raise
            error = caught
        if checked:
            if self._calls == CHECKED_CALLS:
                self._mask = self._later_mask
            signature = f"Allreduce call {self._calls}: {call.signature() if call else 'refused'}"
            with self.recorder.region("agree") if self.recorder else nullcontext():  # ranks wait here, too
                self._agreement.check(signature, error)
        if self.recorder is None:
            self._run(call, sendbuf, recvbuf, op)
            return
        before, start = self.traffic, self.recorder.now()
        around, self.recorder.doing = self.recorder.doing, ("collective", -1, start)
        self._run(call, sendbuf, recvbuf, op)
        self.recorder.doing = around
        self._record(call, start, self.traffic - before)

    def _run(self, call: Call, sendbuf: Any, recvbuf: Any, op: MPI.Op) -> None:
        source, target, link = call.source, call.target, self._link
        schedule = call.schedule(self._default, link)
        if target is None:
            _native_allreduce(self, sendbuf, recvbuf, op)
        elif schedule == "native" and target.device is None and target.array.size <= link.max_count:
            self._handed_over += target.array.nbytes
            out = MPI.IN_PLACE if source is None else source.plain()
            _native_allreduce(self, out, target.plain(), op)
        else:
            if source is not None:
                target.array[...] = source.array
            self._reduce(target, call.op, schedule)

    def _reduce(self, target: Vector, op: str, algorithm: str) -> None:
        link = self._link
        if link.size == 1 or target.array.size == 0:
            return
        if target.device is None or gpu_path()[0] == "direct":
            self._reduce_here(target.array, target.kind, op, algorithm)
        else:
            stage = self._stage(target.device)
            stage.run(target.array, lambda host, _: self._reduce_here(host, target.kind, op, algorithm))

    def _reduce_here(self, work: Any, kind: str | None, op: str, algorithm: str) -> None:
        """Run a schedule on memory that MPI may touch."""
        if algorithm == "native":
            self._link.native_allreduce(work.view(kind) if kind else work, op)
            return
        ops = ops_for(work)
        options = {"kind": kind} if kind else {}
        allreduce.get(algorithm)(self._link, work, op, ops, self._scratch_of(ops, work.dtype), **options)

    def _scratch_of(self, ops: Any, like: np.dtype) -> Callable[..., Any]:
        """Cached work arrays: at least ``n`` elements, one array a dtype and ``slot``."""

        def scratch(n: int, dtype: Any = like, slot: str = "") -> Any:
            key = (ops, str(dtype), slot)
            array = self._scratch.get(key)
            if array is None or array.size < n:
                array = self._scratch[key] = ops.empty(n, dtype)
            return array

        return scratch

    def _stage(self, device: Any) -> Stage:
        path, reason = gpu_path()
        if path == "none":
            raise BufferRefused(reason)
        return self._scratch.setdefault(("stage", id(device)), Stage(device))

    def _record(self, call: Call, start: int, used: Traffic) -> None:
        array, dtype = (call.target.array, call.target.name) if call.target else (np.empty(0), "")
        self.recorder.event(
            "collective", start, algo=call.schedule(self._default, self._link), op=call.op, dtype=dtype,
            nelem=array.size, nbytes_dense=array.nbytes,
            nbytes_sent=used.bytes_sent, nbytes_recv=used.bytes_received,
        )  # fmt: skip

    # -- verbs of the exchanges: flat contiguous arrays, no copy of MPI's names needed

    def allreduce_in_place(self, x: Any, algorithm: str = "auto", op: str = "sum", kind: str | None = None) -> None:
        """Reduce the flat array ``x`` over all ranks, in place; ``kind="bfloat16"`` says what uint16 bits stand for."""
        link = self._link or self._open()
        allreduce.check_name(algorithm)
        flat = check_flat(x, "x")
        target = Vector(flat, kind, device_of(x)) if kind else typed(flat, device_of(x))
        if target is None:
            raise BufferRefused(f"x must hold float16, bfloat16, float32, float64 or integers, got {x.dtype}")
        self._reduce(target, op, schedule(target, self._default if algorithm == "auto" else algorithm, link))

    def broadcast(self, x: Any, root: int) -> None:
        """Copy the flat array ``x`` of rank ``root`` into that of every rank."""
        link = self._link or self._open()
        if not 0 <= root < link.size:
            raise InvalidArgument(f"root must be a rank, 0 to {link.size - 1}, got {root}")
        flat = check_flat(x, "x").view(np.uint8)
        device = device_of(x)
        if device is None or gpu_path()[0] == "direct" or link.size == 1:
            broadcast(link, flat, root)
        else:
            here = link.rank == root
            self._stage(device).run(flat, lambda host, _: broadcast(link, host, root), outward=here, back=not here)

    def gather_to_all(self, x: Any, counts: list[int] | None = None) -> tuple[Any, list[int]]:
        """Every rank's flat array ``x``, one after the other in rank order, and how many elements each has (asked of
        all ranks where not given).
        """
        link = self._link or self._open()
        flat, device = check_flat(x, "x"), device_of(x)
        counts = counts or link.gather_lengths(flat.size)
        staged = device is not None and gpu_path()[0] != "direct"
        mine = self._stage(device).to_host(flat) if staged else flat
        gathered = ops_for(mine).empty(sum(counts), mine.dtype)
        gather_to_all(link, mine.view(np.uint8), gathered.view(np.uint8), [n * mine.itemsize for n in counts])
        if not staged:
            return gathered, counts
        result = device.empty(gathered.size, flat)
        self._stage(device).to_device(result, gathered)
        return result, counts

    def _gather_bytes(self, text: bytes) -> list[bytes]:
        flat, counts = self.gather_to_all(np.frombuffer(text, np.uint8))
        return [part.tobytes() for part in np.split(flat, np.cumsum(counts)[:-1])]

    def meanwhile(self, work: Iterator[None]) -> AbstractContextManager[None]:
        """Within the block, time spent waiting in our own verbs goes to ``work``, piece by piece, and at its end to
        what is left. The work is local: no MPI.
        """
        return (self._link or self._open()).meanwhile(work)

    # -- agreement

    def agree(self, signature: str, error: Exception | None = None, patient: bool = False) -> None:
        """Raise the same exception on every rank unless all gave the same ``signature`` and no ``error``.

        ``patient`` is for waits of milliseconds: it leaves the core to whoever has work.

        Raises
        ------
        Disagreement
            The signatures differ: the text says which ranks gave what.
        Exception
            Some ranks gave an error: that of the lowest, in its own class, as ``rank r: text``.
        """
        if self._link is None:
            self._open()
        self._agreement.check(signature, error, patient)

    def fail_together(self, error: Exception | None) -> None:
        """Raise on every rank the error that any of them has."""
        self.agree("", error)

    @property
    def traffic(self) -> Traffic:
        """What this rank has sent and received through this communicator's own verbs and ``Allreduce``."""
        if self._link is None:
            return Traffic()
        if self._handed_over:
            self._link.count_modelled(2 * (self._link.size - 1) * self._handed_over // self._link.size)
            self._handed_over = 0
        return self._link.traffic()

