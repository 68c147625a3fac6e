"""Collectives in flight: a queue that a helper thread works off while the caller computes.

The thread has a communicator of its own and runs the calls one after the other, in the order in which they were
started, which is the same on every rank. It needs MPI_THREAD_MULTIPLE. Where MPI does not give that, its own
non-blocking call is used, which gets on when the request is tested or waited for; what that cannot do (half
precision, device arrays, the reproducible mode) is done at once.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from .call import resolve


class Pending:
    """A started all-reduce, with the verbs of an MPI request. The buffers must be left alone until it is done."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None

    def complete(self, error: BaseException | None = None) -> None:
        self._error = error
        self._done.set()

    def Wait(self, status: Any = None) -> bool:
        """Return when the result is there; raise what went wrong."""
        self._done.wait()
        return self._result()

    def Test(self, status: Any = None) -> bool:
        """Whether the result is there; raise what went wrong."""
        return self._done.is_set() and self._result()

    def wait(self, status: Any = None) -> None:
        """As ``Wait``; returns None, as mpi4py's does."""
        self.Wait()

    def test(self, status: Any = None) -> tuple[bool, None]:
        """As ``Test``; returns (flag, None), as mpi4py's does."""
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

    def Wait(self, status: Any = None) -> bool:
        return self._request.Wait(status)

    def Test(self, status: Any = None) -> bool:
        return self._request.Test(status)


class Worker:
    """A thread that runs calls one after the other, in the order in which they were started."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        # Not the object itself: the thread must not keep it alive.
        self._thread = threading.Thread(target=work_off, args=(self._calls,), name="mpicomp", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._calls.put, None)

    def start(self, function: Callable[..., None], *arguments: Any) -> Pending:
        """Queue a call, which may use no communicator that another thread uses."""
        pending = Pending()
        self._calls.put((function, arguments, pending))
        return pending

    def stop(self) -> None:
        """End the thread when it is through with what was started."""
        self._calls.put(None)
        self._thread.join()


def threads_allowed(comm: MPI.Intracomm) -> bool:
    """Whether MPI may be called from any thread, on every rank (collective)."""
    return MPI.Intracomm.allreduce(comm, MPI.Query_thread() == MPI.THREAD_MULTIPLE, MPI.LAND)


class Helper:
    """Runs all-reduces on ``comm``, an own duplicate, beside the caller.

    ``threaded`` says whether MPI allows a thread; it must be the same on all ranks.
    """

    def __init__(self, comm: Any, threaded: bool) -> None:
        self.comm, self.threaded = comm, threaded
        self._worker = Worker() if threaded else None

    def start(self, sendbuf: Any, recvbuf: Any, op: MPI.Op, algorithm: str) -> Pending:
        """Begin ``comm.Allreduce`` of the same arguments."""
        arguments = sendbuf, recvbuf, op, algorithm
        if self._worker is not None:
            return self._worker.start(self.comm.Allreduce, *arguments)
        target = resolve(*arguments).target
        simple = target is None or (target.device is None and not target.kind)
        if simple and not self.comm.reproducible:
            return Native(MPI.Intracomm.Iallreduce(self.comm, sendbuf, recvbuf, op))
        pending = Pending()
        run(self.comm.Allreduce, arguments, pending)
        return pending

    def free(self) -> None:
        """End the thread when it is through with what was started; free its communicator (collective)."""
        if self._worker is not None:
            self._worker.stop()
        self.comm.Free()


def work_off(calls: queue.SimpleQueue) -> None:
    """What the thread does, until it finds None in the queue."""
    for call in iter(calls.get, None):
        run(*call)


def run(function: Callable[..., None], arguments: tuple[Any, ...], pending: Pending) -> None:
    try:
        function(*arguments)
    except BaseException as error:  # whoever waits for the result gets it
        pending.complete(error)
    else:
        pending.complete()
