"""A set-up on 65 536 ranks, of which this process is one and passes for the others: its calls and its memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import setup_calls
from mpi4py import MPI
from setup_calls import Counted

import mpicomp
from mpicomp.schemes.workers import Workers

FEW, MANY = 8, 65_536
SLACK = 2048  # bytes: numbers of other lengths
ROUND_BYTES = 600  # of the two requests of a round of agreement, of which there are log2 ranks; 550 on CPython 3.11


class Passing(Counted):
    """Rank 0 of ``ranks``, a node each; what the others would say is what it says itself."""

    ranks = FEW

    def Get_size(self):
        return self.ranks

    def Split_type(self, *arguments):
        self.note("Split_type")
        return MPI.Intracomm(MPI.COMM_SELF.Dup())

    def Allreduce(self, send, receive, op):
        Counted.note("Allreduce", receive.nbytes)
        if op == MPI.SUM:
            receive *= Passing.ranks

    def allgather(self, value):
        raise AssertionError("a list of all ranks")

    Allgather = allgather

    def Send_init(self, outgoing, dest, tag):
        assert 0 < dest < self.ranks
        return super().Send_init(outgoing, 0, tag)

    def Recv_init(self, incoming, source, tag):
        assert 0 < source < self.ranks
        return super().Recv_init(incoming, 0, tag)


def set_up(monkeypatch, ranks):
    """Bytes that a Comm and a Reducer keep and take at most, of Python's and NumPy's memory."""
    Passing.ranks = ranks
    monkeypatch.setattr(mpicomp.Comm, "size", property(lambda self: ranks), raising=False)
    with monkeypatch.context() as inside:
        counted = setup_calls.counting(inside, Passing)
        tracemalloc.start()
        comm = mpicomp.Comm(Passing(MPI.COMM_SELF))
        reducer = mpicomp.Reducer(comm, "scalecom:chunk=8")
        found = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    setup_calls.check(counted, ranks)
    assert comm.layout == (1, ranks) and reducer._workers.total == ranks
    comm.Free()
    return found


def test_a_set_up_takes_as_much_memory_on_65536_ranks_as_on_8_but_for_rounds(monkeypatch):
    set_up(monkeypatch, FEW)  # imports, caches
    # The least of three: caches grow at any time, too.
    few, many = (np.min([set_up(monkeypatch, ranks) for _ in range(3)], axis=0) for ranks in (FEW, MANY))
    print(f"kept and most at once: {few} bytes on {FEW} ranks, {many} on {MANY}")
    assert max(many - few) < SLACK + ROUND_BYTES * (MANY.bit_length() - FEW.bit_length())


def test_workers_of_many_ranks_take_no_list():
    workers = Workers.equal(3, MANY)
    assert (workers.total, workers.most, workers.on(MANY - 1), workers.first(5)) == (3 * MANY, 3, 3, 15)
    assert workers.owner(0) == (0, 0) and workers.owner(3 * MANY - 1) == (MANY - 1, 2) and workers.owner(7) == (2, 1)
