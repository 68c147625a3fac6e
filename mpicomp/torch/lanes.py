"""The threads on which the buckets of a model take turns, and their communicators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..comm.comm import Comm
from ..comm.nonblocking import Pending, Worker, done_at_once, threads_allowed

# Exchanges at once: where one agrees, or computes, another one's vectors are on the wire. PyTorch's Gloo has as many.
LANES = 2


class Lanes:
    """LANES threads, or one, each with a communicator of its own; making and closing them is collective.

    Parameters
    ----------
    comm : Comm or MPI.Intracomm
    several : bool
        Whether more than one will do: not for gradients on GPUs, nor a trace, which tells what one thread does.
    eager : bool
        Whether there are to be threads; there are none where MPI does not allow them, either.
    """

    def __init__(self, comm: Any, several: bool, eager: bool = True) -> None:
        self.comms = [Comm(comm)]
        self.threaded = eager and threads_allowed(self.comms[0])
        if self.threaded and several:
            self.comms += [Comm(comm) for _ in range(1, LANES)]
        self._workers = [Worker() for _ in self.comms] if self.threaded else []
        for own in self.comms if self.threaded else ():
            own.wait_patiently()

    def of(self, number: int) -> int:
        """The lane of a bucket of this ``number``."""
        return number % len(self.comms)

    def start(self, lane: int, function: Callable[..., None], *arguments: Any) -> Pending:
        """Begin a call on a lane, behind those that were begun there before; without threads it is done at once."""
        if self.threaded:
            return self._workers[lane].start(function, *arguments)
        return done_at_once(function, arguments)

    def close(self) -> None:
        """End the threads when they are through; free the communicators."""
        for worker in self._workers:
            worker.stop()
        for comm in self.comms:
            comm.Free()
