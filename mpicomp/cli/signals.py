"""SIGUSR1 and SIGTERM ask a training run with checkpoints to stop: after its step, saved, with a code of its own."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

STOPPED = 75  # EX_TEMPFAIL of sysexits.h: not done, start the same command again
SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


class StopSignals:
    """Within the block the signals only leave a mark; outside, and where ``wanted`` is false, they do what they did.

    They may reach some ranks only: the ranks agree after each step.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted and threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}
        self.name = ""  # of the signal that came first

    def asked(self) -> bool:
        """Whether this rank has been asked to stop."""
        return bool(self.name)

    def __enter__(self) -> StopSignals:
        if self._wanted:
            self._before = {number: signal.signal(number, self._mark) for number in SIGNALS}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _mark(self, signum: int, frame: FrameType | None) -> None:
        if not self.name:
            self.name = signal.Signals(signum).name
            os.write(2, f"[mpicomp] {self.name}: stopping after this step, with a checkpoint\n".encode())
