"""The benchmark of tests/gpu_check.py, its kernels run on the CPU: every case can be called, and times are right."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from arrays import assert_same

from mpicomp.ops import reference

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
import bench

N = 9000


class Event:
    """One that says how many calls there were since the one before, a millisecond each."""

    calls = 0

    def record(self, stream):
        self.at = Event.calls

    def synchronize(self):
        pass


class Functions:
    """NumPy in the place of CuPy."""

    cuda = SimpleNamespace(
        Device=lambda: SimpleNamespace(attributes={"L2CacheSize": 12 * N}), Event=Event,
        get_current_stream=lambda: None, get_elapsed_time=lambda begin, end: float(end.at - begin.at),
    )

    def __getattr__(self, name):
        return getattr(np, name)


@pytest.fixture
def xp(emulated_cuda):
    return Functions()


def test_every_case_can_be_called(xp):
    arrays = bench.sets(xp, N)
    assert len(arrays) == bench.CACHES
    for case in bench.cases(xp, N):
        case.call(arrays[0])
        assert case.moved >= 4 * N, case.name
    fresh = arrays[1]
    selected = np.zeros_like(fresh["positions"])
    reference.chunk_max(fresh["memory"], fresh["grad"], bench.CHUNK, selected)
    assert_same(fresh["positions"], selected)


def test_time_of_a_call(xp):
    """Batches on arrays in turn, after each has been used once."""
    seen = []

    def call(one):
        Event.calls += 1
        seen.append(one)

    assert bench.seconds(xp, call, ["a", "b"]) == pytest.approx(1e-3)
    assert seen[:6] == ["a", "b", "a", "b", "a", "b"]
    assert len(seen) == 2 + bench.ROUNDS * bench.BATCH


def test_a_row_compares_with_the_copy():
    row = bench.row("x", 10, 80, 2.0, 80.0, 0.4)
    assert (row["bytes_per_s"], row["of_copy"], row["target"]) == (40.0, 0.5, 0.4)
