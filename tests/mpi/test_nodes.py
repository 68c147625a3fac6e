"""``node_shared`` over several nodes, made of neighbouring ranks of this one."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from mpicomp import Comm, node
from mpicomp.allreduce import node_shared

OPERATIONS = {"SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum}


@pytest.fixture(params=["2", "3"])
def own(request, world, monkeypatch):
    """Nodes of two or three ranks; an odd rank out where the number of ranks does not divide."""
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", request.param)
    monkeypatch.setattr(node, "SLOT_BYTES", 1 << 12)
    monkeypatch.setattr(node_shared, "PART_BYTES", 1 << 14)
    comm = Comm(world)
    yield comm
    comm.Free()


def test_layout(own, world):
    limit = own._link._node_limit
    assert own.layout == (min(limit, world.size), -(-world.size // limit))


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_operation(own, op):
    for dtype in ("float32", "float64", "int32", "int64", "float16"):
        for n in (1, 7, 1000, 20_011):
            vectors = [np.random.default_rng([n, rank]).integers(1, 3, n).astype(dtype) for rank in range(own.size)]
            want = vectors[0].copy()
            for vector in vectors[1:]:
                OPERATIONS[op](want, vector, out=want)
            got = np.full_like(want, 77)
            own.Allreduce(vectors[own.rank], got, getattr(MPI, op), "node_shared")
            np.testing.assert_array_equal(got, want)
            own.Allreduce(MPI.IN_PLACE, vectors[own.rank], getattr(MPI, op), "node_shared")
            np.testing.assert_array_equal(vectors[own.rank], want)


@pytest.mark.parametrize("shared", [False, True])
def test_many_calls_with_shared_and_private_arrays(own, shared):
    send = own.empty(9001) if shared else np.empty(9001, np.float32)
    receive = own.empty(9001)
    for turn in range(20):
        send[:] = own.rank + turn
        own.Allreduce(send, receive, algorithm="node_shared")
        np.testing.assert_array_equal(receive, sum(range(own.size)) + turn * own.size)
        np.testing.assert_array_equal(send, own.rank + turn)


def test_each_rank_sends_its_slice_alone(own):
    """Between m nodes of q ranks: 2(m-1)/(m q) n bytes a rank."""
    per_node, nodes = own.layout
    if own.size != per_node * nodes or nodes == 1 or per_node == 1:
        return
    x = np.ones(96 * 1024, np.float32)
    before = own.traffic
    own.Allreduce(MPI.IN_PLACE, x, algorithm="node_shared")
    sent = (own.traffic - before).bytes_sent
    assert sent == pytest.approx(2 * (nodes - 1) / own.size * x.nbytes, rel=0.02)
