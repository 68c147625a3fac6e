"""Naps of a rank that waits patiently: they follow the rate at which messages come."""

import pytest

from mpicomp.comm import naps as module


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
