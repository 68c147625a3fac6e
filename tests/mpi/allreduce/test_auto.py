"""The choice of ``auto``: by a table that may come from a file, the same on every rank."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mpicomp import Comm
from mpicomp.allreduce import get, node_shared
from mpicomp.allreduce.table import FORMAT, VERSION
from mpicomp.errors import InvalidArgument
from mpicomp.trace import NullRecorder


class Recorder(NullRecorder):
    """Keeps the schedule of every all-reduce."""

    def __init__(self):
        super().__init__()
        self.ran = []

    def event(self, kind, start, **facts):
        self.ran.append(facts["algo"])


def write(path, world, choices):
    row = {"ranks_per_node": world.size, "nodes": 1, "device": "cpu"}
    row["choices"] = [{"max_bytes": limit, "algorithm": name} for limit, name in choices]
    if world.rank == 0:
        path.write_text(json.dumps({"format": FORMAT, "version": VERSION, "measured": {}, "rows": [row]}))
    world.Barrier()


def test_a_table_decides(world, shared_tmp, monkeypatch):
    write(shared_tmp / "table.json", world, [(100, "native"), (1000, "ring"), (None, "node_shared")])
    # A file that only rank 0 can see counts for all.
    monkeypatch.setenv("MPICOMP_TUNING", str(shared_tmp / "table.json") if world.rank == 0 else "/nowhere")
    own = Comm(world)
    own.recorder = Recorder()
    for n in (25, 26, 250, 251, 5000):
        x = np.full(n, own.rank, np.float32)
        own.Allreduce(x, out := np.empty_like(x))
        np.testing.assert_array_equal(out, sum(range(own.size)))
    names = ["native", "ring", "ring", "node_shared", "node_shared"] if own.size > 1 else ["native"] * 5
    assert own.recorder.ran == names
    own.Free()


@pytest.mark.parametrize("slow", [True, False])
def test_between_nodes_the_network_decides(world, monkeypatch, slow):
    """A power of two of nodes takes halving-doubling on a fast network."""
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "1")
    own = Comm(world)
    own.recorder = Recorder()
    own._engine.link._bandwidth = 1e7 if slow else 1e12
    for kib in (32, 33, 256, 257):  # per rank
        x = np.random.default_rng(own.rank).integers(-8, 8, kib * own.size << 8).astype(np.float32)
        own.Allreduce(x, out := np.empty_like(x))
        np.testing.assert_array_equal(out, sum(own.allgather(x)))
    alone, halves = own.size == 1, not slow and own.size & (own.size - 1) == 0
    ran = ["native"] * 3 + ["halving_doubling"] if halves else ["native"] + ["ring"] * 3
    assert own.recorder.ran == (["native"] * 4 if alone else ran)
    own.Free()


@pytest.mark.parametrize("slow", [True, False])
def test_nodes_with_several_ranks_exchange_their_slices_so_too(world, monkeypatch, slow):
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "2")
    monkeypatch.setattr(node_shared, "get", lambda name: names.append(name) or get(name))
    own, names = Comm(world), []
    if own.size < 3:
        own.Free()
        pytest.skip("needs two nodes")
    link = own._engine.link
    if (across := link.across) is not None:
        across.nodes, across._bandwidth = 2, 1e7 if slow else 1e12  # they share this machine
    x = np.random.default_rng(own.rank).integers(-8, 8, 100_003).astype(np.float32)
    own.Allreduce(x, out := np.empty_like(x), algorithm="node_shared")
    np.testing.assert_array_equal(out, sum(own.allgather(x)))
    halves = not slow and link.nodes in (2, 4)
    assert names == ["direct" if across is None else "halving_doubling" if halves else "ring"]
    own.Free()


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "mpicomp-tuning", "version": 99, "rows": []}'])
def test_a_bad_table_is_refused_by_all(world, shared_tmp, monkeypatch, text):
    path = shared_tmp / "bad.json"
    if world.rank == 0:
        path.write_text(text)
    monkeypatch.setenv("MPICOMP_TUNING", str(path))
    with pytest.raises(InvalidArgument, match=r"bad\.json.*mpicomp tune"):
        Comm(world)


def test_a_missing_table_is_refused_by_all(world, monkeypatch):
    monkeypatch.setenv("MPICOMP_TUNING", "/nowhere/table.json")
    with pytest.raises(InvalidArgument, match="No such file"):
        Comm(world)
