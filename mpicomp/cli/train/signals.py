"""Stop signals: SIGUSR1 and SIGTERM end a training with checkpoints after its step, with an exit code of its own."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from signal import _HANDLER

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


class StopSignals:
    """Within the block a stop signal is only recorded, in ``name``; nothing changes if ``wanted`` is false.

    The signal may reach some ranks only: the ranks agree after each step.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted and threading.current_thread() is threading.main_thread()
        self._before: dict[int, _HANDLER] = {}
        self.name = ""  # of the first signal

    def asked(self) -> bool:
        """True once a signal has asked this rank to stop."""
        return bool(self.name)

    def __enter__(self) -> StopSignals:
        if self._wanted:
            self._before = {number: signal.signal(number, self._record) for number in SIGNALS}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _record(self, signum: int, frame: FrameType | None) -> None:
        if not self.name:
            self.name = signal.Signals(signum).name
            os.write(2, f"[mpicomp] {self.name}: stopping after this step, with a checkpoint\n".encode())
