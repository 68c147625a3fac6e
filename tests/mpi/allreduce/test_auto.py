"""The choice of ``auto``: by a table that may come from a file, the same on every rank."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mpicomp import Comm
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
