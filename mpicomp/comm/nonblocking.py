"""All-reduces in flight: a queue that a helper thread processes while the caller computes.

The thread has a communicator of its own and runs the calls in the order in which they were started, which is the same
on every rank. It needs MPI_THREAD_MULTIPLE. Without it, MPI's own non-blocking call runs, and progresses when its
request is tested or waited for. Calls that this one does not cover (half precision, the reproducible mode, device
arrays, on which Open MPI's crashes) are complete when they return.

A program that ends before its requests are complete gets a warning; its all-reduces complete first, because
MPI_Finalize crashes beside them.
"""

from __future__ import annotations

import atexit
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, Protocol, cast

from mpi4py import MPI

from ..allreduce import LOSSY
from ..ops import ops_for
from ..ops.device import Device, device_of, ready, stay_on
from ..types import Array
from .allreduce_call import resolve
from .buffers import Buffer, array_in
from .interfaces import Communicator
from .job import this_rank
from .naps import NAP
from .settings import Settings

P = ParamSpec("P")
EXIT_S = 30.0  # at the end of the program, for all ranks to complete what they have started


# All-reduces in flight, with their buffers, which mpi4py's requests do not keep. MPI uses them even if no other code
# has the request. Those of MPI's own calls are in flight until a test or a wait.
_unfinished: set[Pending] = set()


class Pending:
    """A started all-reduce, with the verbs of an MPI request. Its buffers must not be used until it is complete."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None
        _unfinished.add(self)

    def complete(self, error: BaseException | None = None) -> None:
        """Announce the result, or the error of the call."""
        self._error = error
        self._done.set()
        _unfinished.discard(self)

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
    """An all-reduce of MPI's own in flight on ``comm``, with its buffers."""

    def __init__(self, request: MPI.Request, comm: object, *buffers: Buffer) -> None:
        super().__init__()
        self._request, self.comm, self._buffers = request, comm, buffers

    def Wait(self, status: object = None) -> bool:
        return self._finish(self._request.Wait(cast("MPI.Status | None", status)))

    def Test(self, status: object = None) -> bool:
        return self._finish(self._request.Test(cast("MPI.Status | None", status)))

    def _finish(self, done: bool) -> bool:
        if done:
            self._buffers = ()
            _unfinished.discard(self)
        return done


class Scaled(Pending):
    """Another pending all-reduce, whose result is multiplied by a factor as soon as it is there."""

    def __init__(self, pending: Pending, x: Array, factor: float) -> None:
        super().__init__()
        _unfinished.discard(self)  # in favour of ``pending``
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


class Queued(Pending):
    """An all-reduce of a device array, queued by ``call`` on a stream beside the caller's.

    It begins when what the caller has queued so far is done. Waiting for it lets the caller's later work come after it;
    the host does not wait. Until then it keeps the call's arrays: memory that is given up goes to the caller's stream.
    """

    def __init__(self, device: Device, x: Array, call: Callable[[], object]) -> None:
        before = device.record(x)
        with device.beside(x):
            device.follow(before)
            try:
                call()
            except BaseException:
                device.synchronize(x)  # the caller may use its array again
                raise
            self._device, self._event = device, device.record(x)
        self._kept: object = (x, call)
        super().__init__()

    def Wait(self, status: object = None) -> bool:
        if not self._done.is_set():
            self._device.follow(self._event)
            self._kept = None
            self.complete()
        return True

    def Test(self, status: object = None) -> bool:
        return self.Wait()


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

    def Allreduce(self, sendbuf: Buffer, recvbuf: Buffer, op: MPI.Op | str = ..., algorithm: str = "auto"
                  ) -> None: ...  # fmt: skip

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
        finish_at_exit()

    def start(self, sendbuf: Buffer, recvbuf: Buffer, op: MPI.Op | str, algorithm: str) -> Pending:
        """Begin ``comm.Allreduce`` with the same arguments."""
        sendbuf, recvbuf = as_given(sendbuf), as_given(recvbuf)
        if self._worker is not None:
            for message in (sendbuf, recvbuf):  # the thread has streams of its own, which do not wait for the caller's
                ready(array_in(message))
            types, (sendbuf, recvbuf) = with_own_types(sendbuf, recvbuf)
            return self._worker.start(self._allreduce, types, sendbuf, recvbuf, op, algorithm)
        if isinstance(op, str) or algorithm in LOSSY:
            return done_at_once(self.comm.Allreduce, sendbuf, recvbuf, op, algorithm)
        target = resolve(sendbuf, recvbuf, op, algorithm, self._settings.gpu_path).target
        on_host = all(device_of(array_in(message)) is None for message in (sendbuf, recvbuf))
        if on_host and not (target is not None and target.kind) and not self._settings.reproducible:
            if target is not None:
                self._count_native(target.array.nbytes)
            request = MPI.Intracomm.Iallreduce(cast("MPI.Intracomm", self.comm), sendbuf, recvbuf, op)
            return Native(request, self.comm, sendbuf, recvbuf)
        return done_at_once(self.comm.Allreduce, sendbuf, recvbuf, op, algorithm)

    def _allreduce(self, types: list[MPI.Datatype], sendbuf: Buffer, recvbuf: Buffer, *arguments: Any) -> None:
        """Run the call in the thread, on the device of its result; free its datatypes."""
        stay_on(array_in(recvbuf))
        try:
            self.comm.Allreduce(sendbuf, recvbuf, *arguments)
        finally:
            for datatype in types:
                datatype.Free()

    def start_sum(self, x: Array, algorithm: str, kind: str | None, factor: float, source: Array | None) -> Pending:
        """Begin ``comm.allreduce_in_place`` with the sum, or ``allreduce_from`` if there is a ``source``."""
        if self._worker is not None:
            device = device_of(x)
            call = (partial(self.comm.allreduce_in_place, x, algorithm, "sum", kind, factor) if source is None
                    else partial(self.comm.allreduce_from, source, x, algorithm, factor))
            return self._worker.start(call) if device is None else self._worker.start(run_behind, device, x,
                                                                                     device.record(x), call)
        if kind is None:
            pending = self.start(MPI.IN_PLACE if source is None else source, x, MPI.SUM, algorithm)
            return pending if factor == 1.0 else Scaled(pending, x, factor)
        return done_at_once(self.comm.allreduce_in_place, x, algorithm, "sum", kind, factor)

    def free(self) -> None:
        """Wait for all started calls; end the thread and free its communicator (collective)."""
        if self._worker is not None:
            self._worker.stop()
        for pending in list(_unfinished):
            if isinstance(pending, Native) and pending.comm is self.comm:
                pending.Wait()
        self.comm.Free()


def as_given(message: Buffer) -> Buffer:
    """Return a message that does not change with the caller's list, which may be filled anew for the next call."""
    return tuple(map(as_given, message)) if isinstance(message, (list, tuple)) else message


def with_own_types(*messages: Buffer) -> tuple[list[MPI.Datatype], list[Buffer]]:
    """Return duplicates of the derived datatypes, and messages with them: the caller may free its own in flight."""
    given: list[MPI.Datatype] = []
    types: list[MPI.Datatype] = []
    own = list(messages)
    for place, message in enumerate(messages):
        last = message[-1] if isinstance(message, tuple) and message else None
        if isinstance(last, MPI.Datatype) and last != MPI.DATATYPE_NULL and not last.is_predefined:
            if last not in given:  # mpi4py wants one datatype in both messages
                given.append(last)
                types.append(last.Dup())
            own[place] = (*message[:-1], types[given.index(last)])
    return types, own


def run_behind(device: Device, x: Array, event: object, call: Callable[[], None]) -> None:
    """Run a call on the device array ``x`` in a thread, after an event of the caller's; all it queues is done then."""
    stay_on(x)
    device.wait(event)
    with device.side_stream(x):
        call()


def process(calls: queue.SimpleQueue[tuple[Callable[[], object], Pending] | None]) -> None:
    """Run the queued calls until there is None in the queue."""
    for function, pending in iter(calls.get, None):
        run(function, pending)
        del function, pending  # a daemon thread that ends with the interpreter must not free PyTorch's tensors


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


def finish_at_exit() -> None:
    """Let ``finish_all`` run before the exit handlers of communicators that exist, such as those of watchdogs."""
    atexit.unregister(finish_all)
    atexit.register(finish_all)


def finish_all() -> None:
    """Complete all-reduces in flight before MPI is finalized; end the job if other ranks have not started them."""
    left = list(_unfinished)
    if not left or MPI.Is_finalized() or hasattr(sys, "last_type"):  # an uncaught exception ends the job by MPI_Abort
        return
    warn(f"the program ends with {len(left)} all-reduce(s) in flight, which complete now; their errors would be lost: "
         "call Wait() on each request of Iallreduce")  # fmt: skip
    deadline = time.monotonic() + EXIT_S
    for pending in left:
        try:
            while not pending.Test() and time.monotonic() < deadline:
                time.sleep(NAP)
        except Exception as error:
            warn(f"an all-reduce in flight has failed: {type(error).__name__}: {error}")
    if time.monotonic() >= deadline:
        from mpi4py.run import set_abort_status

        warn(f"all-reduces in flight were not complete after {EXIT_S:g} s, perhaps because other ranks have not "
             "started them; the job ends by MPI_Abort")  # fmt: skip
        set_abort_status(1)


def warn(text: str) -> None:
    """Write a line on standard error."""
    print(f"{this_rank()}: {text}", file=sys.stderr, flush=True)
