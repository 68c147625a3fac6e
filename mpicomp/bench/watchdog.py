"""A thread that ends the job if a step does not return: nothing in Python can interrupt a blocked MPI call."""

from __future__ import annotations

import socket
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..comm.comm import Comm

TIMED_OUT = 124  # exit code, as timeout(1)


class Watchdog:
    """Aborts the job if ``seconds`` pass without a call of ``watch``; 0 or None: never."""

    def __init__(self, comm: Comm, seconds: float | None) -> None:
        self._comm, self._seconds = comm, seconds
        self._doing, self._since = "starting", time.monotonic()
        self._over = threading.Event()

    def watch(self, doing: str) -> None:
        """Report that something new begins."""
        self._doing, self._since = doing, time.monotonic()

    def __enter__(self) -> Watchdog:
        if self._seconds:
            threading.Thread(target=self._look, args=(self._seconds,), daemon=True).start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._over.set()

    def _look(self, seconds: float) -> None:
        while not self._over.wait(min(1.0, seconds / 4)):
            if time.monotonic() - self._since > seconds:
                sys.stderr.write(
                    f"Error: [rank {self._comm.rank} {socket.gethostname()}] {self._doing} did not return within "
                    f"{seconds:g} s; stopping all ranks\n"
                )
                sys.stderr.flush()
                time.sleep(0.5)  # time for other hanging ranks to report
                self._comm.Abort(TIMED_OUT)
