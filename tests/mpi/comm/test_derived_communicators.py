"""Communicators that are made from a ``Comm``: what they are, what they inherit, and that they can be freed."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from mpicomp import Comm
from mpicomp.comm.safety import revocation
from mpicomp.comm.safety.survivors import Survivors
from mpicomp.errors import Disagreement


def waited(pair):
    child, request = pair
    request.Wait()
    return child


MAKERS = {
    "Dup": lambda comm: comm.Dup(),
    "Dup_with_info": lambda comm: comm.Dup_with_info(MPI.INFO_NULL),
    "Idup": lambda comm: waited(comm.Idup()),
    "Idup_with_info": lambda comm: waited(comm.Idup_with_info(MPI.INFO_NULL)),
    "Clone": lambda comm: comm.Clone(),
    "Create": lambda comm: comm.Create(comm.Get_group()),
    "Create_group": lambda comm: comm.Create_group(comm.Get_group(), 7),
    "Split": lambda comm: comm.Split(0, -comm.rank),
    "Split_type": lambda comm: comm.Split_type(MPI.COMM_TYPE_SHARED),
    "Comm": Comm,
}


@pytest.fixture(params=MAKERS)
def make(request):
    return MAKERS[request.param]


@pytest.fixture(params=[False, True], ids=["", "reproducible"])
def parent(request, world, monkeypatch):
    monkeypatch.setenv("MPICOMP_CHECK", "1")
    comm = Comm(world, reproducible=request.param)
    monkeypatch.delenv("MPICOMP_CHECK")
    yield comm
    comm.Free()


def test_it_is_a_comm_with_the_same_settings(parent, make):
    child = make(parent)
    grandchild = make(child)
    parts = [child, grandchild]
    try:
        for one in parts:
            assert type(one) is Comm
            assert one.reproducible == parent.reproducible  # any rank may ask alone: nothing is collective here
            x = np.full(1000, 0.1, np.float32) * (one.rank + 1)
            y, z = np.empty_like(x), np.empty_like(x)
            one.Allreduce(x, y, algorithm="ring")
            one.Iallreduce(x, z, algorithm="direct").Wait()
            np.testing.assert_allclose(y, 0.1 * one.size * (one.size + 1) / 2, rtol=1e-5)
            np.testing.assert_allclose(z, y, rtol=1e-5)
            assert (one.log is None) == (parent.log is None)
            request = one.Iallreduce(np.ones(5), np.empty(5))
            request.Wait()
    finally:
        for one in reversed(parts):
            one.Free()
            assert one == MPI.COMM_NULL


def test_checks_are_inherited(world, monkeypatch):
    """From whoever was made first, whatever the environment is by then."""
    monkeypatch.setenv("MPICOMP_CHECK", "1")
    parent = Comm(world)
    monkeypatch.setenv("MPICOMP_CHECK", "0")
    child = parent.Split(0)
    if child.size > 1:
        for _ in range(2):
            with pytest.raises(Disagreement):
                child.allreduce_in_place(np.ones(3 + child.rank))
    child.Free()
    parent.Free()


def test_ranks_that_are_left_out(parent):
    part = parent.Split(0 if parent.rank else MPI.UNDEFINED)
    if parent.rank == 0:
        assert part == MPI.COMM_NULL
        return
    assert type(part) is Comm
    assert part.allreduce(1) == parent.size - 1
    part.Free()


def test_the_same_bits(world):
    """The bits of a group of ranks are the same by every schedule."""
    with_order = Comm(world, reproducible=True)
    part = with_order.Split(0, -world.rank)
    x = np.random.default_rng(part.rank).standard_normal(999).astype(np.float32)
    everyone = part.allgather(x)
    expected = everyone[0].copy()
    for other in everyone[1:]:
        expected += other
    for algorithm in ("auto", "native", "ring", "node_shared"):
        y = np.empty_like(x)
        part.Allreduce(x, y, algorithm=algorithm)
        np.testing.assert_array_equal(y, expected)
    part.Free()
    with_order.Free()


def test_the_parent_may_go_first(world):
    parent = Comm(world)
    child = parent.Dup()
    parent.Free()
    x = np.ones(10)
    child.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
    np.testing.assert_array_equal(x, world.size)
    child.Free()


def test_topologies_are_mpi4py_s(parent):
    grid = parent.Create_cart([parent.size])
    assert type(grid) is MPI.Cartcomm
    own = Comm(grid)
    x = np.ones(10)
    own.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
    np.testing.assert_array_equal(x, parent.size)
    own.Free()
    grid.Free()


@pytest.mark.skipif(not hasattr(MPI.Comm, "Is_revoked") or MPI.get_vendor()[0] != "Open MPI", reason="needs ULFM")
@pytest.mark.parametrize("wanted", [True, False])
def test_survivors_are_as_reproducible_as_the_world(world, wanted):
    comm = Comm(world, reproducible=wanted)
    group = Survivors(comm)
    try:
        assert group.make().reproducible is wanted
    finally:
        group._over.set()  # no ``leave``, which may end the process
        revocation.leave(group._note)
    group.comm.Free()
    comm.Free()
