"""Wait for processes and conditions; limits that a loaded machine does not reach."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable

PATIENCE_S = 600.0  # limit of a wait that takes seconds on an idle machine
POLL_SECONDS = 0.2


def wait(process: subprocess.Popen[bytes], progress: Callable[[], object], limit: float) -> int | None:
    """Return the exit code of a process; None if ``progress()`` returned the same value for ``limit`` seconds."""
    seen, since = progress(), time.monotonic()
    while True:
        try:
            return process.wait(timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired:
            now = progress()
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > limit:
            return None


def until(reached: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Return once ``reached()`` is true; raise TimeoutError if ``process`` ends before or after ``PATIENCE_S``."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        if process is not None and process.poll() is not None and not reached():
            raise TimeoutError(f"the process ended with code {process.returncode} before what was waited for")
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE_S:.0f} s")
        time.sleep(0.01)


def slowed(seconds: float) -> str:
    """Return ``seconds`` times the processes per core, for a program that must not take a loaded machine for a hang."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return f"{round(seconds * max(1.0, load), 1):g}"  # as programs print it
