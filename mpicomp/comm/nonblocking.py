"""Collectives in flight: a queue that a helper thread works off while the caller computes.

The thread has a communicator of its own and runs the calls one after the other, in the order in which they were
started, which is the same on every rank. It needs MPI_THREAD_MULTIPLE. Where MPI does not give that, its own
non-blocking call is used, which gets on when the request is tested or waited for; what that cannot do (half
precision, the reproducible mode, device arrays, on which Open MPI's crashes) is done at once.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..ops import ops_for
from ..ops.device import device_of, ready
from .allreduce_call import resolve
from .safety.checks import Opened


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

    @property
    def going(self) -> bool:
        """Whether nobody has seen its end."""
        return bool(self._request)

    def Wait(self, status: Any = None) -> bool:
        return self._request.Wait(status)

    def Test(self, status: Any = None) -> bool:
        return self._request.Test(status)


class Scaled(Pending):
    """Another one, whose result is multiplied by a factor as soon as it is there."""

    def __init__(self, pending: Pending, x: Any, factor: float) -> None:
        super().__init__()
        self._pending, self._x, self._factor = pending, x, factor

    def Wait(self, status: Any = None) -> bool:
        return self._pending.Wait(status) and self._scale()

    def Test(self, status: Any = None) -> bool:
        return self._pending.Test(status) and self._scale()

    def _scale(self) -> bool:
        if self._x is not None:
            ops_for(self._x).scale(self._x, self._factor)
            self._x = None
        return True


class Worker:
    """A thread that runs calls one after the other, in the order in which they were started."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
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


def array_in(message: Any) -> Any:
    """The array of a message, which mpi4py also takes in a list with its count and datatype."""
    return message[0] if isinstance(message, (list, tuple)) and message else message


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
        self._native: list[Native] = []  # those that go on: MPI uses their buffers, whoever has the request

    def start(self, sendbuf: Any, recvbuf: Any, op: MPI.Op, algorithm: str) -> Pending:
        """Begin ``comm.Allreduce`` of the same arguments."""
        arguments = sendbuf, recvbuf, op, algorithm
        if self._worker is not None:
            for message in (sendbuf, recvbuf):  # the thread has streams of its own, which do not wait for the caller's
                ready(array_in(message))
            return self._worker.start(self.comm.Allreduce, *arguments)
        target = resolve(*arguments, self.comm.gpu_path).target
        on_host = all(device_of(array_in(message)) is None for message in (sendbuf, recvbuf))
        if on_host and not (target is not None and target.kind) and not self.comm.reproducible:
            if target is not None:
                self.comm.hand_over(target.array.nbytes)
            pending = Native(MPI.Intracomm.Iallreduce(self.comm, sendbuf, recvbuf, op))
            self._native = [*(one for one in self._native if one.going), pending]
            return pending
        return done_at_once(self.comm.Allreduce, arguments)

    def start_sum(self, x: Any, algorithm: str, kind: str | None, factor: float, source: Any) -> Pending:
        """Begin ``comm.allreduce_in_place`` with the sum, or ``allreduce_from`` where there is a ``source``."""
        arguments = x, algorithm, "sum", kind, factor
        if self._worker is not None and source is not None:
            return self._worker.start(self.comm.allreduce_from, source, x, algorithm, factor)
        if self._worker is not None:
            return self._worker.start(self.comm.allreduce_in_place, *arguments)
        if kind is None:
            pending = self.start(MPI.IN_PLACE if source is None else source, x, MPI.SUM, algorithm)
            return pending if factor == 1.0 else Scaled(pending, x, factor)
        return done_at_once(self.comm.allreduce_in_place, arguments)

    def free(self) -> None:
        """Wait for what was started; end the thread and free its communicator (collective)."""
        if self._worker is not None:
            self._worker.stop()
        for pending in self._native:
            pending.Wait()
        self.comm.Free()


class InFlight(Opened):
    """All-reduces beside the caller, as methods of ``Comm``."""

    _helper: Helper | None = None

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, algorithm: str = "auto") -> Pending:
        """Start an `Allreduce` and return at once (the first time: when all ranks have called it).

        The result has ``Wait``, ``Test``, ``wait`` and ``test`` of an MPI request; errors are raised there. Several
        may be in flight; they are done in the order in which they were started, which must be the same on every rank.
        A helper thread does them where MPI gives MPI_THREAD_MULTIPLE; else they get on with ``Test`` and ``Wait``.
        """
        return self._in_flight.start(sendbuf, recvbuf, op, algorithm)

    def start_allreduce(self, x: Any, algorithm: str = "auto", kind: str | None = None,
                        factor: float = 1.0, source: Any = None) -> Pending:
        """Start an ``allreduce_in_place`` that adds up, or an ``allreduce_from`` a ``source`` that stays and has no
        ``kind``; for ``wait_for``, else as `Iallreduce`. Host arrays only.
        """
        return self._in_flight.start_sum(x, algorithm, kind, factor, source)

    @property
    def flies(self) -> bool:
        """Whether it pays to cut a long vector into several all-reduces in flight; the first use is collective.

        Not where they would be done at once, nor on the communicator of a thread that is a helper itself.
        """
        link = self._link or self._open()
        return link.size > 1 and not link.patient and self._in_flight.threaded

    @property
    def _in_flight(self) -> Helper:
        """Who does them; the first use is collective."""
        link = self._link or self._open()
        if self._helper is None:
            comm: Any = self  # mixed into Comm
            twin = comm.Dup()
            twin._open()
            self._helper = Helper(twin, threads_allowed(link.comm))
        return self._helper

    def hand_over(self, nbytes: int) -> None:
        """So many bytes are reduced by MPI's own call: their traffic is counted by formula."""
        self._plain.handed_over += nbytes


def work_off(calls: queue.SimpleQueue[Any]) -> None:
    """What the thread does, until it finds None in the queue."""
    for call in iter(calls.get, None):
        run(*call)


def done_at_once(function: Callable[..., None], arguments: tuple[Any, ...]) -> Pending:
    pending = Pending()
    run(function, arguments, pending)
    return pending


def run(function: Callable[..., None], arguments: tuple[Any, ...], pending: Pending) -> None:
    try:
        function(*arguments)
    except BaseException as error:  # whoever waits for the result gets it
        pending.complete(error)
    else:
        pending.complete()
