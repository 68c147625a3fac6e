"""Waits that leave the core to others: tests of a request between naps, which follow the rate of messages."""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Callable
from contextlib import suppress

from .interfaces import Request

# A patient rank waits for others' work, such as the leader's selection, and may share a core with it. After a while it
# sleeps between tests. In a stream of messages it sleeps for about as long as two of them take.
SPIN_NS = 100_000
NAP, LONGEST_NAP = 1e-4, 1e-3  # seconds
LENGTHEN, SHORTEN = 2.0, 0.8  # factors of a nap: the message was not there after it, or before it
SEARCH_S = 1.0  # between searches for new sockets


class Naps:
    """Waits that test a request until it is complete, after a while only between naps.

    Parameters
    ----------
    listen : callable
        Called between tests.
    shortest, longest : float
        Limits of a nap in seconds.

    Attributes
    ----------
    wakes_early : bool
        True after ``wake_early``, unless the process has too many files open for that.
    """

    def __init__(self, listen: Callable[[], object], shortest: float = NAP, longest: float = LONGEST_NAP) -> None:
        self._listen, self._shortest, self._longest = listen, shortest, longest
        self._sleep: Callable[[float], object] = time.sleep
        self._asked = self.wakes_early = False
        self.begin()

    def wake_early(self) -> None:
        """From now on, nap until a socket has news: for messages that take several tests to arrive."""
        if not self._asked:
            self._asked = True
            with suppress(OSError):  # no file descriptor is left: naps last
                self._sleep, self.wakes_early = Sockets().nap, True

    def begin(self) -> None:
        """Forget earlier messages: the next one may come soon."""
        self._nap = self._shortest

    def until_done(self, request: Request) -> None:
        """Wait for a request."""
        if request.Test():
            self._nap = max(self._nap * SHORTEN, self._shortest)
            return
        if self._nap == self._shortest and not self.wakes_early:
            end = time.monotonic_ns() + SPIN_NS
            while time.monotonic_ns() < end:
                self._listen()
                if request.Test():
                    return
        while True:
            self._listen()  # which moves messages, too
            self._sleep(self._nap)
            if request.Test():
                return
            self._nap = min(self._nap * LENGTHEN, self._longest)


class Sockets:
    """Naps until a socket of this process has news: bytes have come, or a full buffer has room again.

    MPI moves a long message over TCP from and to the kernel's buffers only while it is called. It does not tell which
    sockets are its own; others only end some naps for nothing.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._search()

    def nap(self, seconds: float) -> bool:
        """Sleep until there is news, at most for some time, rounded up to milliseconds; True if there is."""
        news = bool(self._epoll.poll(seconds))
        if not news and time.monotonic() >= self._next_search:
            self._search()
        return news

    def _search(self) -> None:
        """Find sockets that have been opened since the last search; closed ones are dropped by the system."""
        for number in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):  # registered already, or closed meanwhile
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    self._epoll.register(number, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        self._next_search = time.monotonic() + SEARCH_S
