"""The threads on which the buckets of a model take turns, and their communicators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

from ..comm.comm import Comm
from ..comm.job import Intracomm
from ..comm.nonblocking import Pending, Worker, done_at_once, threads_allowed

P = ParamSpec("P")
# Exchanges at once: where one agrees, or computes, another one's vectors are on the wire. PyTorch's Gloo has as many.
LANES = 2


class Lanes:
    """LANES threads, or one, each with a communicator of its own; making, opening and closing them is collective.

    Until ``open`` there is one lane, without a thread.

    Parameters
    ----------
    comm : Comm or MPI.Intracomm
        Duplicated.

    Attributes
    ----------
    control : Comm
        The caller's own, whatever the threads do: ranks agree there on what they open, and compare what they have.
    comms : list of Comm
        The lanes': without threads ``control`` alone.
    """

    def __init__(self, comm: Intracomm) -> None:
        self.control = Comm(comm)
        self.comms = [self.control]
        self.threaded = False
        self._workers: list[Worker] = []

    @contextmanager
    def closed_if_refused(self) -> Iterator[Comm]:
        """``control``, for a block in which ranks agree; ``close`` if they refuse to go on."""
        try:
            yield self.control
        except Exception:  # of any class: raised on all ranks, so that all close
            self.close()
            raise

    def open(self, several: bool, eager: bool = True) -> None:
        """Make the threads, and the communicators of further lanes.

        Parameters
        ----------
        several : bool
            Make more than one: not for gradients on GPUs, nor for a trace, which records one thread.
        eager : bool
            Make threads, if MPI allows them.
        """
        self.threaded = eager and threads_allowed(self.control)
        if not self.threaded:
            return
        self.comms = [Comm(self.control) for _ in range(LANES if several else 1)]
        self._workers = [Worker() for _ in self.comms]
        for one in (self.control, *self.comms):
            one.wait_patiently()

    def of(self, number: int) -> int:
        """The lane of a bucket of this ``number``."""
        return number % len(self.comms)

    def start(self, lane: int, function: Callable[P, None], *arguments: P.args, **options: P.kwargs) -> Pending:
        """Begin a call on a lane, behind those that were begun there before; without threads it is done at once."""
        begin = self._workers[lane].start if self.threaded else done_at_once
        return begin(function, *arguments, **options)

    def close(self) -> None:
        """End the threads when they are through; free the communicators."""
        for worker in self._workers:
            worker.stop()
        for comm in self.comms:
            if comm is not self.control:
                comm.Free()
        self.control.Free()
