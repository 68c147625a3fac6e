"""All-reduces in flight: a queue that a helper thread processes while the caller computes.

The thread has a communicator of its own and runs the calls in the order in which they were started, which is the same
on every rank. It needs MPI_THREAD_MULTIPLE. Without it, MPI's own non-blocking call runs, and progresses when its
request is tested or waited for. Calls that this one does not cover (half precision, the reproducible mode, device
arrays, on which Open MPI's crashes) are complete when they return.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, Protocol, cast

from mpi4py import MPI

from ..ops import ops_for
from ..ops.device import device_of, ready
from ..types import Array
from .allreduce_call import resolve
from .buffers import Buffer, array_in
from .interfaces import Communicator
from .settings import Settings

P = ParamSpec("P")


class Pending:
    """A started all-reduce, with the verbs of an MPI request. Its buffers must not be used until it is complete."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None

    def complete(self, error: BaseException | None = None) -> None:
        """Announce the result, or the error of the call."""
        self._error = error
        self._done.set()

    def Wait(self, status: object = None) -> bool:
        """Return True when the result is there; raise the error of the call."""
        self._done.wait()
        return self._result()

    def Test(self, status: object = None) -> bool:
        """Return True if the result is there; raise the error of the call."""
        return self._done.is_set() and self._result()

    def wait(self, status: object = None) -> None:
        """Wait as ``Wait`` does; return None, as mpi4py's does."""
        self.Wait()

    def test(self, status: object = None) -> tuple[bool, None]:
        """Test as ``Test`` does; return (flag, None), as mpi4py's does."""
        return self.Test(), None

    def _result(self) -> bool:
        if self._error is not None:
            raise self._error
        return True


class Native(Pending):
    """An all-reduce of MPI's own in flight."""

    def __init__(self, request: MPI.Request) -> None:
        super().__init__()
        self._request = request

    @property
    def going(self) -> bool:
        """True until a test or a wait has seen the end."""
        return bool(self._request)

    def Wait(self, status: object = None) -> bool:
        return self._request.Wait(cast("MPI.Status | None", status))

    def Test(self, status: object = None) -> bool:
        return self._request.Test(cast("MPI.Status | None", status))


class Scaled(Pending):
    """Another pending all-reduce, whose result is multiplied by a factor as soon as it is there."""

    def __init__(self, pending: Pending, x: Array, factor: float) -> None:
        super().__init__()
        self._pending, self._factor = pending, factor
        self._x: Array | None = x

    def Wait(self, status: object = None) -> bool:
        return self._pending.Wait(status) and self._scale()

    def Test(self, status: object = None) -> bool:
        return self._pending.Test(status) and self._scale()

    def _scale(self) -> bool:
        if self._x is not None:
            ops_for(self._x).scale(self._x, self._factor)
            self._x = None
        return True


class Worker:
    """A thread that runs calls one after the other, in the order in which they were started."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], object], Pending] | None] = queue.SimpleQueue()
        # without a reference to this object, which the thread would keep alive
        self._thread = threading.Thread(target=process, args=(self._calls,), name="mpicomp", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._calls.put, None)

    def start(self, function: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> Pending:
        """Queue a call, which may use no communicator that another thread uses."""
        pending = Pending()
        self._calls.put((partial(function, *arguments, **options), pending))
        return pending

    def stop(self) -> None:
        """End the thread after all started calls."""
        self._calls.put(None)
        self._thread.join()


def threads_allowed(comm: MPI.Intracomm) -> bool:
    """Return True if MPI may be called from any thread, on every rank (collective)."""
    return MPI.Intracomm.allreduce(comm, MPI.Query_thread() == MPI.THREAD_MULTIPLE, MPI.LAND)


class Twin(Communicator, Protocol):
    """The communicator of all-reduces in flight: a duplicate of the caller's ``Comm``."""

    def Allreduce(self, sendbuf: Buffer, recvbuf: Buffer, op: MPI.Op = ..., algorithm: str = "auto") -> None: ...

    def Free(self) -> None: ...


class Helper:
    """Runs all-reduces on ``comm`` beside the caller.

    Parameters
    ----------
    comm : Comm
        A duplicate of the caller's, which this object frees.
    count_native : callable
        Counts the traffic of an all-reduce by MPI of so many bytes.
    threaded : bool
        MPI allows a thread; the same on all ranks.
    """

    def __init__(self, comm: Twin, settings: Settings, count_native: Callable[[int], None], threaded: bool) -> None:
        self.comm, self.threaded = comm, threaded
        self._settings, self._count_native = settings, count_native
        self._worker = Worker() if threaded else None
        self._native: list[Native] = []  # not complete: MPI uses their buffers, even if no code has the request

    def start(self, sendbuf: Buffer, recvbuf: Buffer, op: MPI.Op, algorithm: str) -> Pending:
        """Begin ``comm.Allreduce`` with the same arguments."""
        if self._worker is not None:
            for message in (sendbuf, recvbuf):  # the thread has streams of its own, which do not wait for the caller's
                ready(array_in(message))
            return self._worker.start(self.comm.Allreduce, sendbuf, recvbuf, op, algorithm)
        target = resolve(sendbuf, recvbuf, op, algorithm, self._settings.gpu_path).target
        on_host = all(device_of(array_in(message)) is None for message in (sendbuf, recvbuf))
        if on_host and not (target is not None and target.kind) and not self._settings.reproducible:
            if target is not None:
                self._count_native(target.array.nbytes)
            pending = Native(MPI.Intracomm.Iallreduce(cast("MPI.Intracomm", self.comm), sendbuf, recvbuf, op))
            self._native = [*(one for one in self._native if one.going), pending]
            return pending
        return done_at_once(self.comm.Allreduce, sendbuf, recvbuf, op, algorithm)

    def start_sum(self, x: Array, algorithm: str, kind: str | None, factor: float, source: Array | None) -> Pending:
        """Begin ``comm.allreduce_in_place`` with the sum, or ``allreduce_from`` if there is a ``source``."""
        if self._worker is not None and source is not None:
            return self._worker.start(self.comm.allreduce_from, source, x, algorithm, factor)
        if self._worker is not None:
            return self._worker.start(self.comm.allreduce_in_place, x, algorithm, "sum", kind, factor)
        if kind is None:
            pending = self.start(MPI.IN_PLACE if source is None else source, x, MPI.SUM, algorithm)
            return pending if factor == 1.0 else Scaled(pending, x, factor)
        return done_at_once(self.comm.allreduce_in_place, x, algorithm, "sum", kind, factor)

    def free(self) -> None:
        """Wait for all started calls; end the thread and free its communicator (collective)."""
        if self._worker is not None:
            self._worker.stop()
        for pending in self._native:
            pending.Wait()
        self.comm.Free()


def process(calls: queue.SimpleQueue[tuple[Callable[[], object], Pending] | None]) -> None:
    """Run the queued calls until there is None in the queue."""
    for function, pending in iter(calls.get, None):
        run(function, pending)


def done_at_once(function: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> Pending:
    """Run a call now; return it as one in flight."""
    pending = Pending()
    run(partial(function, *arguments, **options), pending)
    return pending


def run(function: Callable[[], object], pending: Pending) -> None:
    """Run a call and hand its error to the code that waits for the result."""
    try:
        function()
    except BaseException as error:
        pending.complete(error)
    else:
        pending.complete()
