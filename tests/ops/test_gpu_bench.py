"""The benchmark tests/gpu/bench.py with its kernels on the CPU: every case runs, is right, and reports device times."""

from __future__ import annotations

import json
from types import SimpleNamespace

import bench
import numpy as np
import pytest
import timing

from mpicomp.ops.gpu import cuda_runtime

pytestmark = pytest.mark.emulation
N = 9000


class Device:
    now = 0.0  # seconds; queued work advances it, an event by one millisecond


class Event:
    done = False  # nothing ends before somebody waits

    def record(self):
        Device.now += 1e-3
        self.at = Device.now

    def synchronize(self):
        pass


class Functions:
    """NumPy in the place of CuPy."""

    cuda = SimpleNamespace(
        Device=lambda: SimpleNamespace(attributes={"L2CacheSize": 12 * N}), Event=Event,
        get_current_stream=lambda: SimpleNamespace(synchronize=lambda: None, ptr=0),
        get_elapsed_time=lambda begin, end: 1e3 * (end.at - begin.at),
    )

    def __getattr__(self, name):
        return getattr(np, name)


@pytest.fixture
def xp(emulated_cuda):
    return Functions()


@pytest.fixture
def busy(xp):
    return timing.Busy(xp, 64)


def test_every_case_gives_what_is_right(xp, emulated_cuda):
    arrays = bench.sets(xp, N)
    assert len(arrays) == bench.CACHES
    checked = 0
    for case in bench.cases(xp, N):
        right = bench.is_right(xp, case, arrays[0])
        assert right in (None, True), case.name
        checked += right is not None
        assert case.moved >= 4 * N, case.name
    assert checked >= 8


def test_a_wrong_result_is_told(xp, busy, monkeypatch):
    monkeypatch.setattr(bench, "largest_are_right", lambda *_: False)
    monkeypatch.setattr(bench, "chunks_are_right", lambda *_: 1 / 0)
    monkeypatch.setattr(bench, "torch_top_k", lambda *_: iter(()))
    monkeypatch.setattr(bench, "Busy", lambda xp: busy)
    found = {one["case"]: one for one in bench.kernels(xp, 1000)}
    assert "ZeroDivisionError" in found["compensate + chunk-max, 1000 elements"]["error"]
    assert found["exact top-k, 0.1 %"]["passed"] is False
    assert found["masked update"]["passed"] is True  # the last one
    assert found["add"]["queued_ahead"] is True
    json.dumps(list(found.values()))
    (last,) = bench.told("some", (1 // 0 for _ in "1"))
    assert last["passed"] is False


def test_time_of_a_call(xp, busy, monkeypatch):
    """Batches on arrays in turn, after each has been used; what keeps the device busy is not counted."""
    seen, waited = [], []
    runtime = SimpleNamespace(to_host=lambda array: waited.append(array) or np.array([array]))
    monkeypatch.setattr(cuda_runtime, "_runtime", runtime)
    monkeypatch.setattr(busy, "for_", lambda seconds: seen.append("busy"))

    def call(one):
        Device.now += 1e-3
        seen.append(one)
        assert cuda_runtime.to_host(one) == [one]
        assert cuda_runtime.to_host(-one) == [-one]

    spent, ahead = timing.seconds(xp, call, [1, 2], busy)
    assert spent == pytest.approx(1e-3 * (1 + 1 / timing.BATCH))
    assert ahead
    assert waited == [1, -1, 2, -2]  # once a set
    assert seen[:4] == [1, 2, 1, 2]
    last = seen[len(seen) - seen[::-1].index("busy") :]
    assert last == [1, 2] * (timing.BATCH // 2)
    assert cuda_runtime._runtime is runtime
    monkeypatch.setattr(Event, "done", True)
    assert not timing.seconds(xp, call, [1, 2], busy)[1]


def test_a_device_is_kept_busy_for_as_long_as_asked(xp, monkeypatch):
    copies = []
    xp.copyto = lambda *_: copies.append(1) or setattr(Device, "now", Device.now + 0.5)
    busy = timing.Busy(xp, 64)
    copies.clear()
    busy.for_(1.2)
    assert len(copies) == 4


def test_a_step_of_scalecom_can_be_called(xp, busy, monkeypatch):
    monkeypatch.setattr(bench, "Busy", lambda xp: busy)
    monkeypatch.setattr(bench, "resnet50", lambda divisor: [(8, 3, 7, 7), (64,), (7,), (40, 9)])
    (found,) = bench.scalecom(xp, 1000)
    assert found["elements"] == 8 * 3 * 49 + 64 + 7 + 360
    assert found["beyond_memory_s"] == pytest.approx(found["seconds"] * (1 - found["of_copy"]))


def test_a_row_compares_with_the_copy():
    row = bench.row("x", 10, 80, (2.0, True), 80.0, 0.4)
    assert (row["bytes_per_s"], row["of_copy"], row["target"]) == (40.0, 0.5, 0.4)
