"""A rank that leaves a schedule in the middle, by any exception: every rank raises, at once or with the news."""

from __future__ import annotations

import functools
import os
import signal
import threading

import numpy as np
import pytest
from mpi4py import MPI
from progress import until

from mpicomp import Comm
from mpicomp.errors import BufferRefused, Disagreement, InvalidArgument, RankLeft

N = 60_000


def calls(comm):
    """The verbs that run schedules of our own."""
    x = np.ones(N)
    everyone = {rank: x for rank in range(comm.size) if rank != comm.rank}
    return {
        **{name: functools.partial(comm.Allreduce, x, np.empty(N), algorithm=name)
           for name in ("ring", "halving_doubling", "direct")},
        "broadcast": lambda: comm.broadcast(x, 0),
        "gather_to_all": lambda: comm.gather_to_all(x),
        "send_and_receive": lambda: comm.send_and_receive(everyone, dict.fromkeys(everyone, x.nbytes), x),
        "messages": lambda: in_flight(comm, everyone),
        "agree": lambda: comm.agree("the same"),
        "extremes": lambda: comm.extremes(comm.rank),
    }  # fmt: skip


NAMES = ["ring", "halving_doubling", "direct", "broadcast", "gather_to_all", "send_and_receive", "messages",
         "agree", "extremes"]


def in_flight(comm, everyone):
    """Two sets of messages at once."""
    started = [comm.start_messages(everyone, dict.fromkeys(everyone, 8 * N), np.ones(N)) for _ in range(2)]
    for messages in started:
        messages.Wait()


@pytest.fixture(params=[False, True], ids=["", "patient"])
def own(request, world, monkeypatch):
    monkeypatch.setenv("MPICOMP_CHECK", "0")
    comm = Comm(world)
    if request.param:
        comm.wait_patiently()
    yield comm
    comm.Free()


def all_out_of(comm, x, algorithm):
    """All-reduce ``x``; a rank that is late must not meet the next call's error in this one."""
    comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
    comm.Barrier()


def strike(comm, error, after):
    """Let this rank's wait for its request number ``after`` raise."""
    finish, seen = comm._engine.link._finish, []

    def finish_or_raise(*arguments):
        seen.append(1)
        if len(seen) > after:
            raise error
        finish(*arguments)

    comm._engine.link._finish = finish_or_raise


def refused_from_now_on(comm):
    for call in (*calls(comm).values(), lambda: comm.Allreduce(MPI.IN_PLACE, np.ones(3)), lambda: comm.empty(3),
                 lambda: comm.lengths_of_all(1), lambda: comm.swap_lengths([0] * comm.size)):
        with pytest.raises(RankLeft, match=r"rank \d+ left .* make a new Comm"):
            call()


@pytest.mark.parametrize("name", NAMES)
def test_every_rank_raises(own, name):
    """The others wait for the rank that raises: they get its reason at once."""
    if own.size == 1:
        return
    all_out_of(own, np.ones(3), "auto")
    last = own.size - 1
    if own.rank == last:
        strike(own, KeyError("=f"), 0)
        with pytest.raises(KeyError):
            calls(own)[name]()
    else:
        with pytest.raises(RankLeft, match=rf"rank {last} left a collective .* \(KeyError: '=f'\)"):
            for _ in range(1000):  # a rank that waits for no other learns of it when the message has arrived
                calls(own)[name]()
    refused_from_now_on(own)


@pytest.mark.parametrize("call", [
    lambda comm: comm.lengths_of_all(1),
    lambda comm: comm.swap_lengths([0] * comm.size),
    lambda comm: comm.allreduce_in_place(np.ones(3), "native"),
], ids=["lengths_of_all", "swap_lengths", "native"])
@pytest.mark.parametrize("known", [False, True], ids=["while it waits", "before it waits"])
def test_a_patient_rank_leaves_a_collective_of_mpi(world, monkeypatch, call, known):
    """It neither keeps the core nor waits for ever."""
    monkeypatch.setenv("MPICOMP_CHECK", "0")
    comm = Comm(world)
    comm.wait_patiently()
    call(comm)
    comm.Barrier()  # all are out of it
    if comm.size > 1:
        link = comm._engine.link
        complete = link._complete
        if comm.rank == 0:
            for peer in range(1, comm.size):
                world.recv(source=peer)
            with pytest.raises(KeyError), link.break_on_error:
                raise KeyError("=f")
        else:
            def begun(collective):
                world.send(None, 0)
                if known:
                    until(link._leaving.Get_status)
                complete(collective)

            monkeypatch.setattr(link, "_complete", begun)
            with pytest.raises(RankLeft, match="rank 0 left a collective"):
                call(comm)
            assert len(link._abandoned) == comm.size, "reasons for the others, and what MPI may still write into"
        refused_from_now_on(comm)
    comm.Free()


@pytest.mark.parametrize("after", [1, 2, 3])
def test_every_rank_raises_by_itself(own, after):
    """Nothing is left posted, so that buffers may go."""
    if own.size == 1:
        return
    strike(own, ZeroDivisionError(), after)
    with pytest.raises((ZeroDivisionError, RankLeft)):
        for _ in range(3):
            own.Allreduce(MPI.IN_PLACE, np.ones(N), algorithm="ring")
    assert own._engine.link.started == []
    refused_from_now_on(own)


def test_a_signal_handler_that_raises(own, folder):
    """The signal comes once rank 0 waits for the others, which begin after that."""
    sent = folder / "sent"

    def interrupted(signum, frame):
        raise KeyboardInterrupt

    def interrupt():
        until(lambda: own._engine.link.started)
        os.kill(os.getpid(), signal.SIGALRM)
        sent.touch()

    if own.size == 1:
        return
    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        if own.rank == 0:
            threading.Thread(target=interrupt).start()
        else:
            until(sent.exists)
        with pytest.raises(KeyboardInterrupt if own.rank == 0 else RankLeft):
            for _ in range(2):
                own.Allreduce(MPI.IN_PLACE, np.ones(N), algorithm="ring")
    finally:
        signal.signal(signal.SIGALRM, before)
    refused_from_now_on(own)


def test_refusals_break_nothing(own):
    for _ in range(2):
        with pytest.raises(BufferRefused):
            own.Allreduce(MPI.IN_PLACE, np.ones(2 * N)[::2], algorithm="ring")
        with pytest.raises(InvalidArgument):
            own.broadcast(np.ones(N), own.size)
        if own.size > 1:
            with pytest.raises(Disagreement):
                own.agree(f"I am {own.rank}")
        x = np.ones(N)
        own.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
        assert x[0] == own.size


def test_a_new_comm_works(world, monkeypatch):
    monkeypatch.setenv("MPICOMP_CHECK", "0")
    for _ in range(3):
        comm = Comm(world)
        x = np.ones(N)
        all_out_of(comm, x, "direct")
        assert x[0] == comm.size
        if comm.rank == 0:
            strike(comm, OSError(os.strerror(5)), 1)
        if comm.size > 1:
            with pytest.raises((OSError, RankLeft)):
                for _ in range(2):
                    comm.Allreduce(MPI.IN_PLACE, x, algorithm="direct")
        comm.Free()


def test_between_nodes(world, monkeypatch):
    """Ranks of a node share memory, and meet those of other nodes on a communicator of its own."""
    monkeypatch.setenv("MPICOMP_CHECK", "0")
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "2")
    comm = Comm(world)
    x = np.ones(N)
    all_out_of(comm, x, "node_shared")
    link = comm._engine.link
    across = link.known_across
    assert link.started == [] and (across is None or across.started == [])
    if comm.size > 2:
        if comm.rank == 0:
            across._finish = lambda *arguments: 1 / 0
            with pytest.raises(ZeroDivisionError):
                comm.Allreduce(MPI.IN_PLACE, x, algorithm="node_shared")
        else:
            with pytest.raises(RankLeft, match="rank 0 left"):
                for _ in range(2):
                    comm.Allreduce(MPI.IN_PLACE, x, algorithm="node_shared")
        with pytest.raises(RankLeft):
            comm.Allreduce(MPI.IN_PLACE, x, algorithm="node_shared")
    comm.Free()
