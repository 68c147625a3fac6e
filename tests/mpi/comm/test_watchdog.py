"""Times at which a watchdog calls MPI beside the rank it watches: only while others may wait for a stuck rank."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from mpicomp import Comm
from mpicomp.comm.safety import watchdog
from mpicomp.comm.safety.call_log import CallLog
from mpicomp.ops.node_shared import PlainCalls

LIMIT_S, TICK_S = 40.0, 1.0


class Probed:
    """In place of a communicator: counts looks for messages."""

    def __init__(self):
        self.looks = 0

    def Iprobe(self, *arguments):
        self.looks += 1
        return False


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=1000.0)

    def sleep(seconds):
        now.seconds += seconds

    time = SimpleNamespace(monotonic=lambda: now.seconds, sleep=sleep)
    monkeypatch.setattr(watchdog, "time", time)
    monkeypatch.setattr("mpicomp.comm.safety.call_log.monotonic", time.monotonic)
    return now


@pytest.fixture
def rank(clock):
    """A watched rank: its calls, what its watchdog asks MPI, and ``wait(s)``, in which the watchdog ticks."""
    calls, comm = CallLog(PlainCalls(None, None)), Probed()
    watched = watchdog.Watched(calls, comm, SimpleNamespace(seconds=LIMIT_S, tick=TICK_S, threaded=True))

    def wait(seconds):
        before = comm.looks
        for _ in range(round(seconds / TICK_S)):
            clock.seconds += TICK_S
            watched.look()
        return comm.looks - before

    return SimpleNamespace(calls=calls, wait=wait)


def test_a_rank_that_gets_on_is_left_alone(rank):
    """A tick finds the rank in a call, in another one like it, or outside."""
    for step in range(100):
        rank.calls.begin("Allreduce")
        if step % 3 == 0:
            assert rank.wait(TICK_S) == 0
            rank.calls.begin("Barrier")  # inside; the outermost call is the same
            rank.calls.end()
            assert rank.wait(TICK_S) == 0
        rank.calls.end()
        assert rank.wait(TICK_S * (step % 5)) == 0


def test_a_rank_in_one_call_listens_after_a_few_ticks(rank):
    rank.calls.begin("Allreduce")
    assert rank.wait(watchdog.STILL_TICKS * TICK_S) == 0
    assert rank.wait(3 * TICK_S) == 3
    rank.calls.end()
    assert rank.wait(TICK_S) == 0


def test_a_rank_that_does_something_else_listens_long_before_others_give_up(rank):
    rank.calls.begin("Allreduce")
    rank.calls.end()
    assert rank.wait(LIMIT_S * watchdog.STILL_SHARE) == 0
    assert rank.wait(LIMIT_S / 2) == LIMIT_S / 2 / TICK_S


def test_a_call_ends_in_the_thread_that_began_it(rank):
    """Two threads may wait for messages at once."""
    rank.calls.begin("receive from rank 1")
    other = threading.Thread(target=rank.calls.begin, args=("receive from rank 2",))
    other.start()
    other.join()
    rank.calls.end()
    assert [entry.name for entry in rank.calls.open] == ["receive from rank 2"]


def test_an_alarm_is_written_before_other_ranks_are_asked(clock, capfd, monkeypatch):
    """Another rank's alarm may be up to a tick earlier, and abort the job."""
    calls, done = CallLog(PlainCalls(None, None)), []
    comm = SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 2, Iprobe=lambda *arguments: False,
                           Isend=lambda *arguments: done.append(capfd.readouterr().err))  # fmt: skip
    watched = watchdog.Watched(calls, comm, SimpleNamespace(seconds=LIMIT_S, tick=TICK_S, threaded=True))
    monkeypatch.setattr(watched, "_stop", done.append)
    calls.begin("bcast")
    clock.seconds += LIMIT_S + TICK_S
    watched.look()
    written, code = done
    assert "in #1 bcast for 41.0 s, longer than MPICOMP_TIMEOUT=40; stopping all ranks" in written
    assert code == watchdog.TIMED_OUT
    assert "rank 1: no answer" in capfd.readouterr().err


def test_short_calls_that_go_straight_to_mpi_count(world, clock):
    comm = Comm(world)
    if comm._engine._watched is None or not comm._engine._watched._watchdog.threaded:
        comm.Free()
        pytest.skip("needs a watchdog and MPI_THREAD_MULTIPLE")
    x = np.ones(3)
    for _ in range(100):  # the first are compared
        comm.Allreduce(MPI.IN_PLACE, x)
    watched = watchdog.Watched(comm.log, Probed(), SimpleNamespace(seconds=LIMIT_S, tick=TICK_S, threaded=True))
    begun = comm.log.plain.number
    for _ in range(50):
        comm.Allreduce(MPI.IN_PLACE, x)
        clock.seconds += LIMIT_S / 2
        watched.look()
    assert comm.log.plain.number == begun + 50
    assert watched._comm.looks == 0
    comm.Free()
