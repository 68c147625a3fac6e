"""Started collectives and messages as PyTorch's ``Work``, and the order in which a process group runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import FunctionType
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ..comm.comm import Comm
from ..comm.nonblocking import Worker, finish_at_exit
from ..comm.point_to_point import Message
from ..ops.device import stay_on
from .flat import finished

Tensors = Sequence[torch.Tensor]
Future = torch.futures.Future[list[torch.Tensor]]
NO_TIMEOUT = timedelta(milliseconds=-1)


T = TypeVar("T")


def untraced(kind: type[T]) -> type[T]:
    """Let ``torch.compile`` run the methods of a class as they are: it would trace those that C++ calls."""
    try:
        from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    except ImportError:  # earlier versions leave out what they cannot trace
        return kind
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            set_code_exec_strategy(method.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return kind


def write(function: Callable[[], object]) -> None:
    """Run a function that writes tensors, also those of inference mode: threads and callers need not be in it."""
    with torch.inference_mode():
        function()


@untraced
class Work(dist.Work):
    """A started call: ``wait`` raises its error, and its future holds the list of its output tensors.

    Parameters
    ----------
    outputs : sequence of tensors
        The tensors that the call writes.
    """

    def __init__(self, outputs: Tensors) -> None:
        super().__init__()
        self._outputs = list(outputs)
        self._lock = threading.Lock()
        self._done: threading.Event | None = None  # None: complete, or not known that anyone waits
        self._complete = False
        self._error: BaseException | None = None
        self._source: int | None = None
        self._base: Any = None
        self._future: Any = None

    # -- the side of the call

    def run(self, function: Callable[[], object]) -> None:
        """Run the call and complete this work."""
        try:
            write(function)
        except BaseException as error:
            self.finish(error)
        else:
            self.finish()

    def finish(self, error: BaseException | None = None) -> None:
        """Complete this work, with its future, by a result or by an error."""
        with self._lock:
            self._error, self._complete = error, True
            if self._done is not None:
                self._done.set()
            base = self._base
        if base is not None:
            base.set_result(None)

    # -- the side of PyTorch

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the result; raise the error of the call. The library's watchdog limits the time."""
        if not self._complete:
            with self._lock:
                if self._done is None:
                    self._done = threading.Event()
                    if self._complete:
                        self._done.set()
            self._done.wait()
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Return True if the call has ended, also by an error."""
        return self._complete

    def is_success(self) -> bool:
        """Return True if the call has ended without an error."""
        return self._complete and self._error is None

    def exception(self) -> BaseException | None:
        """Return the error of a call that has ended; None if there is none."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Wait for the output tensors and return them."""
        self.wait()
        return self._outputs

    def synchronize(self) -> None:
        """Wait for the result."""
        self.wait()

    def source_rank(self) -> int:
        """Return the rank that sent a received message."""
        if self._source is None:
            raise RuntimeError("source_rank needs a complete receive: call wait() first")
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Future:
        """Return a future of the output tensors.

        Callbacks of a future run in the thread that completes the call. Its error is a ``RuntimeError`` with the name
        and text of the call's: PyTorch's own code reads it in C++.
        """
        with self._lock:
            if self._future is None:
                devices = sorted({str(one.device) for one in self._outputs if one.is_cuda})
                self._base = torch.futures.Future(devices=[*devices] or None)
                self._future = self._base.then(self._value)
                complete = self._complete
            else:
                complete = False
        if complete:
            self._base.set_result(None)
        return self._future

    def _value(self, _: object) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._outputs


@untraced
class MessageWork(Work):
    """A message between two ranks, which MPI moves while any thread waits.

    Parameters
    ----------
    message : Message
    outputs : sequence of tensors
        The tensor that is received.
    threaded : bool
        MPI may be called from any thread; else a future is complete when ``wait`` or ``is_completed`` has found so.
    land : callable, optional
        Copies what was received into the tensor.
    """

    def __init__(self, message: Message, outputs: Tensors, threaded: bool, land: Callable[[], object] | None = None
                 ) -> None:  # fmt: skip
        super().__init__(outputs)
        self._message, self._threaded, self._land = message, threaded, land
        self._turn = threading.Lock()

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the message; raise its error."""
        self._end(self._message.Wait)
        return super().wait()

    def is_completed(self) -> bool:
        """Return True if the message has ended, also by an error."""
        self._end(self._message.Test, patient=False)
        return self._complete

    def is_success(self) -> bool:
        """Return True if the message has ended without an error."""
        return self.is_completed() and self._error is None

    def get_future(self) -> Future:
        """Return a future of the received tensor; a thread waits for it, if MPI allows one."""
        future = super().get_future()
        if not self.is_completed() and self._threaded:
            threading.Thread(target=self._end, args=(self._message.Wait,), name="mpicomp", daemon=True).start()
        return future

    def _end(self, ended: Callable[[], bool], patient: bool = True) -> None:
        if not self._turn.acquire(blocking=patient):  # the future's thread waits for it
            return
        try:
            if self._complete:
                return
            try:
                if not ended():
                    return
                self._source = self._message.source
                if self._land is not None:
                    write(self._land)
            except BaseException as error:
                self.finish(error)
            else:
                self.finish()
        finally:
            self._turn.release()


@untraced
class Joined(Work):
    """Several works as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__([one for work in works for one in work._outputs])
        self._works = list(works)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for all; raise the first error."""
        for work in self._works:
            work.wait()
        return True

    def is_completed(self) -> bool:
        """Return True if all have ended."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Return True if all have ended without an error."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """Return the first error of those that have ended."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def get_future(self) -> Future:
        """Return a future of all output tensors."""
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(
            lambda done: [one for future in done.value() for one in future.value()])


class Turns:
    """The calls on one communicator, in the order in which they were started.

    A call that its caller waits for at once runs in the caller's thread if nothing else is under way; the others run in
    a thread of their own. Both are in the same order, so ranks need not choose alike.

    Parameters
    ----------
    threaded : bool
        MPI allows threads; else every call is complete when it is started.
    """

    def __init__(self, comm: Comm, threaded: bool) -> None:
        self._comm, self.threaded = comm, threaded
        self._lock = threading.RLock()
        self._queued = 0
        self._worker: Worker | None = None
        self._own: int | None = None  # identity of the worker's thread

    def start(self, function: Callable[[], object], outputs: Tensors, waits: bool, inputs: Tensors = ()) -> Work:
        """Start a call; ``waits`` is True if its caller waits for it at once. ``inputs`` are needed where it may have
        no output.
        """
        work = Work(outputs)
        with self._lock:
            here = not self.threaded or (waits and not self._queued) or threading.get_ident() == self._own
            if here:
                work.run(function)
            else:
                self._queued += 1
                homes = list({one.device: one for one in (*outputs, *inputs) if one.is_cuda}.values())
                for home in homes:
                    finished(home)  # the thread has streams of its own, which do not wait for the caller's
                self._started_worker().start(self._take, work, function, homes)
        return work

    def _started_worker(self) -> Worker:
        if self._worker is None:
            self._worker = Worker()
            finish_at_exit()
        return self._worker

    def _take(self, work: Work, function: Callable[[], object], homes: Tensors) -> None:
        """Run a call in the thread."""
        self._own = threading.get_ident()
        error = None
        try:
            if homes:
                torch.cuda.set_device(homes[0].device)
                stay_on(homes[0])
            self._comm.wait_patiently()
            write(function)
            for home in homes:
                finished(home)  # nor do the caller's wait for them
        except BaseException as caught:
            error = caught
        try:
            work.finish(error)  # calls that its callbacks start come before those of another thread
        finally:
            with self._lock:
                self._queued -= 1
                self._comm.wait_patiently(False)

    def stop(self) -> None:
        """End the thread after all started calls."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None
