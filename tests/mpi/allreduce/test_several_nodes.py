"""``node_shared`` over several nodes, made of neighbouring ranks of this one."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from mpi4py import MPI

from mpicomp import Comm
from mpicomp.allreduce import choice, node_shared
from mpicomp.comm import node_memory, reduction

OPERATIONS = {"SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum}
LOGIC = {
    "LAND": np.logical_and, "LOR": np.logical_or, "LXOR": np.logical_xor,
    "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
}  # fmt: skip


@pytest.fixture(params=["2", "3"])
def own(request, world, monkeypatch):
    """Nodes of two or three ranks; an odd rank out where the number of ranks does not divide."""
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", request.param)
    monkeypatch.setattr(node_memory, "SLOT_BYTES", 1 << 12)
    monkeypatch.setattr(node_shared, "PART_BYTES", 1 << 14)
    comm = Comm(world)
    yield comm
    comm.Free()


def test_layout(own, world):
    limit = own._engine.link.settings.node_limit
    assert own.layout == (min(limit, world.size), -(-world.size // limit))


@pytest.fixture
def schedules(monkeypatch):
    """The schedules that were chosen."""
    chosen, really = [], choice.schedule
    monkeypatch.setattr(reduction, "schedule", lambda *arguments: chosen.append(really(*arguments)) or chosen[-1])
    return chosen


@pytest.mark.parametrize("functions", [OPERATIONS, LOGIC], ids=["arithmetic", "logic"])
def test_every_operation(own, functions, schedules, seed):
    """In place and not, of vectors shorter than the nodes have ranks, and of several parts."""
    reals = ("float32", "float64", "float16") if functions is OPERATIONS else ()
    for (op, function), dtype in itertools.product(functions.items(), (*reals, "int8", "uint16", "int32", "int64")):
        n = (1, 9001)[len(schedules) % 3 > 0]
        rngs = [np.random.default_rng([seed, n, rank]) for rank in range(own.size)]
        vectors = [rng.integers(1 if function in (np.add, np.multiply) else 0, 3, n).astype(dtype) for rng in rngs]
        want = vectors[0].copy()
        for vector in vectors[1:]:
            function(want, vector, out=want)
        mine, got = vectors[own.rank], np.full_like(want, 77)
        if len(schedules) % 2:
            got[:] = mine
            mine = MPI.IN_PLACE
        own.Allreduce(mine, got, getattr(MPI, op), "node_shared")
        np.testing.assert_array_equal(got, want, f"{op} {dtype} {n}")
    assert set(schedules) == {"node_shared"} or own.layout[0] == 1


def test_a_factor_multiplies_once_in_several_nodes(own, seed):
    for n in (1, own.size, 9001):
        vectors = [np.random.default_rng([seed, n, rank]).integers(-9, 9, n).astype(np.float32)
                   for rank in range(own.size)]
        want = np.sum(vectors, axis=0, dtype=np.float32) * np.float32(1 / 3)
        mine, got = vectors[own.rank].copy(), np.empty(n, np.float32)
        own.allreduce_from(mine, got, "node_shared", 1 / 3)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(mine, vectors[own.rank])
        own.allreduce_in_place(mine, "node_shared", factor=1 / 3)
        np.testing.assert_array_equal(mine, want)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once_a_node_and_once_between_them(own, kind, seed):
    dtype = np.dtype("float16") if kind == "float16" else np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    rngs = [np.random.default_rng([seed, rank]) for rank in range(own.size)]
    for n in (5, 9001):
        vectors = [rng.standard_normal(n).astype(dtype) for rng in rngs]
        got = np.zeros(n, dtype)
        own.Allreduce(vectors[own.rank], got)
        per_node = own.layout[0]
        nodes = [vectors[first : first + per_node] for first in range(0, own.size, per_node)]
        sums = [functools.reduce(np.add, (one.astype(np.float32) for one in ranks)).astype(dtype) for ranks in nodes]
        want = functools.reduce(np.add, (one.astype(np.float32) for one in sums)).astype(dtype)
        np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


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
    """Between m nodes of at least q ranks: 2(m-1)/(m q) n bytes by each of q ranks, nothing by the others."""
    per_node, nodes = own.layout
    if nodes == 1 or per_node == 1:
        return
    q = own.size - (nodes - 1) * per_node  # ranks of the last node
    x = np.ones(96 * 1024, np.float32)
    before = own.traffic
    own.Allreduce(MPI.IN_PLACE, x, algorithm="node_shared")
    sent = (own.traffic - before).bytes_sent
    expected = 2 * (nodes - 1) / (nodes * q) * x.nbytes if own.rank % per_node < q else 0
    assert sent == pytest.approx(expected, rel=0.02)
