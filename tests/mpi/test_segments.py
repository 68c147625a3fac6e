"""The lengths in which long messages travel between nodes."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from mpicomp import Comm
from mpicomp.allreduce import direct, halving_doubling, ring, segments

USUAL = 1 << 20, 4


@pytest.fixture
def scattered(world, monkeypatch):
    """Every rank a node of its own."""
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "1")
    comm = Comm(world)
    yield comm
    comm.Free()


def chosen(comm, nbytes=4 << 20, message=1 << 20):
    return segments.segments(comm._link, np.zeros(nbytes, np.uint8), message, USUAL)


@pytest.mark.parametrize("limit, slow", [(0.0, False), (np.inf, True)])
def test_the_network_is_measured_once_and_judged_alike(scattered, limit, slow, monkeypatch):
    monkeypatch.setattr(segments, "SLOW", limit)
    found = chosen(scattered)
    assert scattered.allgather(found) == [found] * scattered.size
    if scattered.size == 1:
        assert found == USUAL
        return
    assert (found != USUAL) == slow
    monkeypatch.setattr(segments, "bandwidth", None)  # not asked again
    assert chosen(scattered) == found


def test_short_messages_and_one_node_need_no_measuring(scattered, world, monkeypatch):
    monkeypatch.setattr(segments, "bandwidth", None)
    assert chosen(scattered, message=segments.LEAST_BYTES - 1) == USUAL
    monkeypatch.delenv("MPICOMP_RANKS_PER_NODE")
    near = Comm(world)
    if near.layout[1] == 1:
        assert chosen(near) == USUAL
    near.Free()


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "direct"])
def test_the_bits_do_not_depend_on_it(scattered, algorithm, monkeypatch):
    module = {"ring": ring, "halving_doubling": halving_doubling, "direct": direct}[algorithm]
    monkeypatch.setattr(segments, "EAGER_BYTES", 1000)
    monkeypatch.setattr(segments, "LEAST_BYTES", 2000)
    monkeypatch.setattr(module, "SEGMENT_BYTES", 7000)
    for n in (4099, 100_003):
        x = np.random.default_rng([scattered.rank, n]).standard_normal(n, np.float32)
        results = []
        for slow in (False, True):
            scattered._link.slow = slow
            got = np.empty_like(x)
            scattered.Allreduce(x, got, MPI.SUM, algorithm)
            results.append(got)
        np.testing.assert_array_equal(*results)
