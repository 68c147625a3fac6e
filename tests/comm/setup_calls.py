"""MPI calls in the set-up of a ``Comm`` and a ``Reducer``: every call, and the bytes that it moves."""

from __future__ import annotations

import pickle
from collections import Counter
from types import SimpleNamespace
from typing import ClassVar

from mpi4py import MPI

from mpicomp.comm import comm, engine, node_memory, settings, transport

# Of a Comm and then of a Reducer, on any number of ranks: calls of MPI, and bytes in all those of a name. Of the
# messages of an agreement, 16 bytes each, there are ceil(log2 size) for each of the two things that a Reducer compares.
COLLECTIVES = {"Dup": 2, "Split_type": 1, "Allreduce": 3, "bcast": 1}
COMPARED, MESSAGE_BYTES = 2, 16
MOST_BYTES = 400  # of all collectives together: a handful of settings, no list of ranks


class Counted(MPI.Intracomm):
    """A communicator, and those made of it, whose calls are counted for the class."""

    calls: ClassVar[Counter] = Counter()
    nbytes: ClassVar[Counter] = Counter()

    @staticmethod
    def note(name, nbytes=0):
        Counted.calls[name] += 1
        Counted.nbytes[name] += nbytes

    def Dup(self):
        self.note("Dup")
        return type(self)(super().Dup())

    def Split_type(self, *arguments):
        self.note("Split_type")
        return super().Split_type(*arguments)

    def Allreduce(self, send, receive, op):
        Counted.note("Allreduce", receive.nbytes)
        MPI.Intracomm.Allreduce(self, send, receive, op)

    def bcast(self, value):
        value = MPI.Intracomm.bcast(self, value)
        Counted.note("bcast", len(pickle.dumps(value)))
        return value

    def allgather(self, value):
        everyone = MPI.Intracomm.allgather(self, value)
        Counted.note("allgather", len(pickle.dumps(everyone)))
        return everyone

    def Allgather(self, send, receive):
        Counted.note("Allgather", receive.nbytes)
        MPI.Intracomm.Allgather(self, send, receive)

    def Send_init(self, outgoing, dest, tag):
        assert tag == transport.AGREEMENT_TAG
        assert outgoing.nbytes == MESSAGE_BYTES
        return CountedStart(MPI.Intracomm.Send_init(self, outgoing, dest, tag))


class CountedStart(MPI.Prequest):
    """A message of an agreement, counted each time that it is sent."""

    def Start(self):
        Counted.note("Start", MESSAGE_BYTES)
        MPI.Prequest.Start(self)


def counting(monkeypatch, kind=Counted):
    """From now on communicators are made as ``kind``; the counts, which begin at nothing."""
    everything = SimpleNamespace(**{**vars(MPI), "Intracomm": kind})
    for module in (comm, engine, transport, node_memory, settings):
        monkeypatch.setattr(module, "MPI", everything)
    Counted.calls, Counted.nbytes = Counter(), Counter()
    return Counted


def check(counted, size):
    """The counts are those of any number of ranks, but for the messages of ceil(log2 size) rounds."""
    rounds = COMPARED * (size - 1).bit_length()
    calls = dict(counted.calls)
    assert calls.pop("Start", 0) == rounds
    assert calls == COLLECTIVES, calls
    nbytes = sum(counted.nbytes.values()) - counted.nbytes["Start"]
    assert nbytes <= MOST_BYTES, nbytes
