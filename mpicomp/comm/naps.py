"""Waits that leave the core to others: tests of a request between naps, which follow the rate of messages."""

from __future__ import annotations

import time
from collections.abc import Callable

from .interfaces import Request

# A patient rank waits for others' work, such as the leader's selection, and may share a core with it. After a while it
# sleeps between tests. In a stream of messages it sleeps for about as long as two of them take.
SPIN_NS = 100_000
NAP, LONGEST_NAP = 1e-4, 1e-3  # seconds
LENGTHEN, SHORTEN = 2.0, 0.8  # factors of a nap: the message was not there after it, or before it


class Naps:
    """Waits that test a request until it is complete, after a while only between naps.

    Parameters
    ----------
    listen : callable
        Called between tests.
    shortest, longest : float
        Limits of a nap in seconds.
    """

    def __init__(self, listen: Callable[[], object], shortest: float = NAP, longest: float = LONGEST_NAP) -> None:
        self._listen, self._shortest, self._longest = listen, shortest, longest
        self.begin()

    def begin(self) -> None:
        """Forget earlier messages: the next one may come soon."""
        self._nap = self._shortest

    def until_done(self, request: Request) -> None:
        """Wait for a request."""
        if request.Test():
            self._nap = max(self._nap * SHORTEN, self._shortest)
            return
        if self._nap == self._shortest:
            end = time.monotonic_ns() + SPIN_NS
            while time.monotonic_ns() < end:
                self._listen()
                if request.Test():
                    return
        while True:
            time.sleep(self._nap)
            if request.Test():
                return
            self._listen()
            self._nap = min(self._nap * LENGTHEN, self._longest)
