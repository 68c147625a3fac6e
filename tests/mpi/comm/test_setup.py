"""Setting up a ``Comm`` and a ``Reducer`` takes as many collectives on any number of ranks, and no list of all."""

from __future__ import annotations

import sys
from pathlib import Path

import mpicomp
from mpicomp.schemes.workers import Workers

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "comm"))
import setup_calls


def test_a_set_up_asks_as_much_of_mpi_on_any_number_of_ranks(world, monkeypatch):
    counted = setup_calls.counting(monkeypatch)
    comm = mpicomp.Comm(setup_calls.Counted(world))
    mpicomp.Reducer(comm, "scalecom:chunk=8")
    setup_calls.check(counted, world.size)
    comm.Free()


def test_ranks_that_hold_different_numbers_of_workers_are_known_one_by_one(comm):
    held = [1 + rank % 3 for rank in range(comm.size)]
    workers = Workers.of_all(comm, held[comm.rank])
    assert (workers.total, workers.most) == (sum(held), max(held))
    assert [workers.on(rank) for rank in range(comm.size)] == held
    owners = [(rank, place) for rank, number in enumerate(held) for place in range(number)]
    assert [workers.owner(worker) for worker in range(workers.total)] == owners
    assert workers.first(comm.rank) == sum(held[: comm.rank])
