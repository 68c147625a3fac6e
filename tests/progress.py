"""Wait for a process as long as it makes progress; a limit on silence does not fail a loaded machine."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

POLL_SECONDS = 0.2


def wait(process: subprocess.Popen, progress: Callable[[], object], limit: float) -> int | None:
    """The exit code of a process; None if ``progress()`` returned the same value for ``limit`` seconds."""
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
