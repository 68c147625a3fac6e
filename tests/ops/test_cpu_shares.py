"""A rank's share of the CPUs of its node: as many threads as the other ranks leave it."""

from __future__ import annotations

import os

import pytest

from mpicomp.ops import threads


@pytest.fixture
def share(monkeypatch):
    """The number of threads of a rank on the CPUs ``own``, beside ranks on ``masks`` (which include it)."""
    for name in threads.LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_compared", 0)
    crowds: list[float] = []
    monkeypatch.setattr(threads._cpu, "set_crowd", crowds.append)

    def number(own, masks) -> int:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: own)
        threads.share_cpus(masks)
        return max(1, int(len(own) / max(1.0, crowds[-1]) + 1e-6))  # as pool.cpp

    return number


@pytest.mark.parametrize(("own", "masks", "expected"), [
    (range(8), [range(8)], 8),
    (range(8), [range(8)] * 2, 4),
    (range(6), [range(6)] * 3, 2),
    (range(3), [range(3)] * 2, 1),
    (range(2), [range(2)] * 16, 1),
    (range(4), [range(4), range(4, 8)], 4),
    (range(4, 8), [range(4), range(4, 8), range(8)], 2),
    (range(64), [range(64)] * 16, 4),
    ([5], [[5], [5]], 1),
])  # fmt: skip
def test_share(share, own, masks, expected):
    assert share(own, masks) == expected


@pytest.mark.parametrize(("name", "value", "expected"), [
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "4", 4), ("MPI_LOCALNRANKS", "2", 8), ("SLURM_STEP_TASKS_PER_NODE", "2(x3),8", 2),
    ("SLURM_STEP_TASKS_PER_NODE", "16(x2)", 1), ("MPI_LOCALNRANKS", "0", 16), ("MPI_LOCALNRANKS", "many", 16),
])  # fmt: skip
def test_ranks_of_the_launcher_that_are_not_in_the_communicator_count(share, monkeypatch, name, value, expected):
    monkeypatch.setenv(name, value)
    assert share(range(16), [range(16)]) == expected


def test_a_smaller_communicator_changes_nothing(share):
    assert share(range(8), [range(8)] * 4) == 2
    assert share(range(8), [range(8)]) == 2
    assert share(range(8), [range(8)] * 8) == 1
