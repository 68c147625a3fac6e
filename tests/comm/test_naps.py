"""Naps of a rank that waits patiently: they follow the rate at which messages come."""

import socket
import threading
import time
from contextlib import suppress

import pytest

from mpicomp.comm import naps as module

LONG = 60.0  # seconds that no nap of a test lasts


class Message:
    """A request that is complete from a moment of the clock on."""

    def __init__(self, clock, at):
        self.clock, self.at = clock, at

    def Test(self):
        self.clock.tests += 1
        self.clock.now += 1e-6
        return self.clock.now >= self.at


class Clock:
    """The module ``time``, in which only sleeping and testing take time."""

    def __init__(self):
        self.now, self.tests, self.slept = 0.0, 0, []

    def monotonic_ns(self):
        return int(self.now * 1e9)

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_naps_are_about_as_long_as_two_messages_take(clock):
    naps, rate, count = module.Naps(int), 3e-4, 1000
    for i in range(count):
        naps.until_done(Message(clock, i * rate))
    assert len(clock.slept) < count  # one nap for several messages
    assert max(clock.slept[50:]) <= 4 * rate
    assert clock.now < count * rate + module.LONGEST_NAP


def test_a_message_that_comes_soon_needs_no_nap(clock):
    module.Naps(int).until_done(Message(clock, module.SPIN_NS * 0.5e-9))
    assert not clock.slept


def test_naps_have_limits(clock):
    naps = module.Naps(int)
    naps.until_done(Message(clock, 1.0))
    assert clock.slept[0] == module.NAP
    assert max(clock.slept) == module.LONGEST_NAP


def test_naps_begin_anew(clock):
    naps = module.Naps(int)
    naps.until_done(Message(clock, 1.0))
    naps.begin()
    clock.slept.clear()
    naps.until_done(Message(clock, clock.now + 1e-3))
    assert clock.slept[0] == module.NAP


def test_a_rank_listens_between_naps(clock):
    def listen():
        if clock.now > 0.01:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        module.Naps(listen).until_done(Message(clock, 1.0))
    assert clock.now < 0.01 + 2 * module.LONGEST_NAP


@pytest.fixture
def pair():
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    yield ends
    for end in ends:
        end.close()


def test_bytes_that_come_end_a_nap(pair):
    sockets = module.Sockets()
    while sockets.nap(0.0):  # older news
        pass
    assert not sockets.nap(0.01)
    pair[0].send(b"news")
    assert sockets.nap(LONG)
    assert not sockets.nap(0.01)  # told once, read or not


def test_room_in_a_full_buffer_ends_a_nap(pair):
    sockets = module.Sockets()
    with pytest.raises(BlockingIOError):
        while True:
            pair[0].send(bytes(1 << 16))
    while sockets.nap(0.01):
        pass
    with suppress(BlockingIOError):
        while pair[1].recv(1 << 20):
            pass
    assert sockets.nap(LONG)


def test_sockets_opened_later_are_found(monkeypatch):
    monkeypatch.setattr(module, "SEARCH_S", 0.0)
    sockets = module.Sockets()
    ends = socket.socketpair()
    while sockets.nap(0.001):
        pass
    while sockets.nap(0.001):  # the new ones have room
        pass
    ends[0].send(b"news")
    assert sockets.nap(LONG)
    for end in ends:
        end.close()


def test_a_wait_ends_with_the_news_of_its_message(pair):
    naps = module.Naps(int, shortest=LONG, longest=LONG)
    naps.wake_early()
    assert naps.wakes_early

    class Byte:
        def Test(self):
            with suppress(BlockingIOError):
                return bool(pair[1].recv(1))
            return False

    timer = threading.Timer(0.05, pair[0].send, [b"x"])
    timer.start()
    start = time.monotonic()
    naps.until_done(Byte())
    timer.join()
    assert time.monotonic() - start < LONG


def refused():
    raise OSError("too many open files")


def test_too_many_open_files_leave_naps_as_they_are(monkeypatch):
    naps = module.Naps(int)
    with monkeypatch.context() as patch:
        patch.setattr(module.select, "epoll", refused)
        naps.wake_early()
    assert not naps.wakes_early
    naps.wake_early()  # is not tried with every wait anew
    assert not naps.wakes_early
