"""Ranks that do not do the same: which calls are compared, and that all ranks get the same error before data moves."""

from __future__ import annotations

import os
from contextlib import nullcontext

import numpy as np
import pytest
from mpi4py import MPI

from mpicomp import Comm, Reducer
from mpicomp.comm.safety.agreement import difference
from mpicomp.comm.safety.checks import CHECKED_CALLS
from mpicomp.errors import Disagreement


@pytest.fixture
def several(world):
    if world.size == 1:
        pytest.skip("one rank cannot disagree")
    return world


def fresh(world, monkeypatch, check=None):
    """A communicator with this ``MPICOMP_CHECK``, and the list of what its ranks compare from now on."""
    monkeypatch.delenv("MPICOMP_CHECK", raising=False)
    if check is not None:
        monkeypatch.setenv("MPICOMP_CHECK", check)
    comm, compared = Comm(world), []
    really = comm._engine.checks.agreement.check

    def check_and_tell(signature, *rest):
        compared.append(signature)
        really(signature, *rest)

    comm._engine.checks.agreement.check = check_and_tell
    return comm, compared


def texts_of_all(comm, error):
    return set(MPI.Intracomm(comm).allgather(str(error)))


WRONG_VERBS = {
    "broadcast from another root": (lambda c, last: c.broadcast(np.ones(4), int(last)), "from rank 0"),
    "broadcast of another length": (lambda c, last: c.broadcast(np.ones(4 + last), 0), "4 elements"),
    "broadcast of another dtype": (lambda c, last: c.broadcast(np.ones(4, "f4" if last else "f8"), 0), "float32"),
    "all-reduce of another length": (lambda c, last: c.allreduce_in_place(np.ones(4 + last)), "5 elements"),
    "all-reduce by another operation": (
        lambda c, last: c.allreduce_in_place(np.ones(4), op="max" if last else "sum"), "op=max"),
    "all-reduce by another algorithm": (
        lambda c, last: c.allreduce_in_place(np.ones(4), "ring" if last else "direct"), "algorithm=ring"),
    "gathered dtype": (lambda c, last: c.gather_to_all(np.ones(4, "f4" if last else "f8")), "float64"),
    "another verb": (lambda c, last: c.lengths_of_all(3) if last else c.broadcast(np.ones(4), 0), "lengths_of_all"),
    "another verb, all-to-all": (
        lambda c, last: c.swap_lengths([0] * c.size) if last else c.gather_to_all(np.ones(2)), "swap_lengths"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(WRONG_VERBS))
def test_every_verb_is_compared_where_all_calls_are(several, comm, name):
    call, text = WRONG_VERBS[name]
    with pytest.raises(Disagreement, match=text) as caught:
        call(comm, comm.rank == comm.size - 1)
    assert f"rank {comm.size - 1}: call" in str(caught.value)
    assert len(texts_of_all(comm, caught.value)) == 1
    x = np.full(3, comm.rank + 1.0)
    comm.broadcast(x, 0)  # all goes on
    assert (x == 1).all()


def test_a_repeated_call_is_noticed_by_its_number(several, comm):
    """Without numbers, one broadcast too many on one rank would shift all later ones by one."""
    x = np.full(5, float(comm.rank))
    comm._plain.calls += comm.rank == 0
    with pytest.raises(Disagreement, match=r"call \d+: broadcast of 5 elements"):
        comm.broadcast(x, 0)
    assert (x == comm.rank).all()
    comm._plain.calls -= comm.rank == 0
    comm.broadcast(x, 0)


def test_verbs_cost_nothing_by_default(world, monkeypatch):
    comm, compared = fresh(world, monkeypatch)
    comm.broadcast(np.ones(4), 0)
    comm.gather_to_all(np.ones(comm.rank))
    assert compared == []
    comm.Free()


@pytest.mark.parametrize("algorithm", ["auto", "ring"])
def test_calls_unlike_any_before_are_compared(several, monkeypatch, algorithm):
    comm, compared = fresh(several, monkeypatch)
    old, other = np.ones(6), np.ones(9, np.float32)

    def call(x, op=MPI.SUM):
        compared.clear()
        comm.Allreduce(x, np.empty_like(x), op, algorithm=algorithm)
        return len(compared)

    assert [call(old) for _ in range(CHECKED_CALLS)] == [1] * CHECKED_CALLS
    assert [call(old), call(old), call(other), call(other), call(old)] == [0, 0, 1, 0, 0]
    assert [call(old, MPI.MAX), call(old, MPI.MAX), call(old)] == [1, 0, 0]
    assert [call(old.astype(np.int64)), call(old.astype(np.int64))] == [1, 0]  # as many bytes
    length = 20 + (comm.rank == 0)
    received = np.full(length, -1.0)
    with pytest.raises(Disagreement, match="21 elements") as caught:
        comm.Allreduce(np.ones(length), received, algorithm=algorithm)
    assert len(texts_of_all(comm, caught.value)) == 1
    assert (received == -1).all()
    assert call(np.ones(21)) == 1  # the refused length has not become a known one
    assert call(old) == 0
    comm.Free()


def test_ranks_may_pass_the_same_vector_in_different_ways(several, monkeypatch):
    comm, compared = fresh(several, monkeypatch)
    for _ in range(CHECKED_CALLS + 1):
        comm.Allreduce(np.ones(3), np.empty(3))
    compared.clear()
    x = np.ones(7)
    for _ in range(3):
        x[:] = 1
        if comm.rank % 2:
            comm.Allreduce(MPI.IN_PLACE, [x, 7, MPI.DOUBLE])
        else:
            comm.Allreduce(np.ones(7), x)
        assert (x == comm.size).all()
    assert len(compared) == 1
    comm.Free()


def test_no_comparison_when_told_so(several, monkeypatch):
    comm, compared = fresh(several, monkeypatch, "0")
    for n in (1, 2, 3):
        comm.Allreduce(np.ones(n), np.empty(n))
    assert compared == []
    comm.Free()


@pytest.mark.parametrize("check", ["yes", "2", ""])
def test_nonsense_is_refused(world, monkeypatch, check):
    monkeypatch.setitem(os.environ, "MPICOMP_CHECK", check)
    with pytest.raises(ValueError, match="MPICOMP_CHECK must be 0, 1 or auto, got"):
        Comm(world)


def test_two_reducers_of_one_scheme_are_told_apart(several):
    """Two networks of one shape, stepped in another order on one rank: else the mean of gradients of both."""
    comm = Comm(several)
    one, other = Reducer(comm, "dense"), Reducer(comm, "dense")
    first, second = (one, other) if comm.rank else (other, one)
    for reducer in (first, second):
        with pytest.raises(Disagreement, match=r"step 0 of dense \(reducer 2\) for float32") as caught:
            reducer.reduce(np.full(4, 1, np.float32))
        assert len(texts_of_all(comm, caught.value)) == 1
    assert (other.reduce(np.full(4, comm.rank, np.float32)) == (comm.size - 1) / 2).all()
    assert (one.reduce(np.full(4, 1, np.float32)) == 1).all()
    comm.Free()


def test_the_environment_of_rank_0_decides(world, monkeypatch):
    """Launchers do not pass on every variable: ranks that went by their own would wait for each other."""
    if world.rank == 0:
        monkeypatch.setenv("MPICOMP_ALGORITHM", "ring")
        monkeypatch.setenv("MPICOMP_CHECK", "1")
    else:
        monkeypatch.setenv("MPICOMP_ALGORITHM", "perhaps")
        monkeypatch.setenv("MPICOMP_CHECK", "0")
    comm = Comm(world)
    before = comm.traffic
    for _ in range(CHECKED_CALLS + 2):
        x = np.ones(1000)
        comm.Allreduce(MPI.IN_PLACE, x)
        assert (x == comm.size).all()
    if world.size > 1:
        assert (comm.traffic - before).messages > 0  # the ring's own; MPI's own call counts none
    with pytest.raises(Disagreement) if world.size > 1 else nullcontext():
        comm.broadcast(np.ones(4 + (comm.rank == 0)), 0)
    comm.Free()


@pytest.mark.parametrize("odd", [0, 4999, 9999])
def test_of_thousands_of_arrays_the_one_that_differs_is_named(several, comm, odd):
    gradients = {f"layer {i}": np.zeros(2) for i in range(10_000)}
    if comm.rank == comm.size - 1:
        gradients[f"layer {odd}"] = np.zeros(3)
    reducer = Reducer(comm, "dense")
    with pytest.raises(Disagreement, match=rf"layer {odd}\[2\].*rank.*layer {odd}\[3\]") as caught:
        reducer.reduce(gradients)
    assert len(str(caught.value)) < 2000


def test_texts_that_end_early_or_repeat_show_where_they_differ():
    long = "ab" * 5000
    for one, other in ((long, long + "ab"), (long, long[:-3]), (long, "c" + long), (f"x{long}y", f"x{long * 2}y")):
        show = difference([one, other])
        assert show(one) != show(other) and max(len(show(one)), len(show(other))) < 3000
