"""The lengths in which long messages travel between nodes."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from mpicomp import Comm
from mpicomp._util.partition import partition
from mpicomp.allreduce import direct, halving_doubling, ring, segments
from mpicomp.comm import allgather

USUAL = 1 << 20, 4


@pytest.fixture
def scattered(world, monkeypatch):
    """Every rank a node of its own."""
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "1")
    comm = Comm(world)
    yield comm
    comm.Free()


def chosen(comm, nbytes=4 << 20, message=1 << 20):
    return segments.segments(comm._engine.link, np.zeros(nbytes, np.uint8), message, USUAL)


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


@pytest.mark.parametrize("limit, probes", [(0.0, 1), (np.inf, segments.PROBES)])
def test_the_network_is_measured_by_messages_that_need_no_answer(scattered, limit, probes, monkeypatch):
    link, sent = scattered._engine.link, []
    isend = link.isend
    monkeypatch.setattr(link, "isend", lambda array, dest: sent.append(array.nbytes) or isend(array, dest))
    monkeypatch.setattr(segments, "PROBE_S", limit)  # seconds, of which the first probe takes more than none
    with link.break_on_error:
        rate = segments.bandwidth(link, link.comm.Barrier)
    assert rate > 0 and max(sent) <= segments.EAGER_BYTES and sum(sent) == probes * segments.PROBE_BYTES


def test_measuring_the_network_is_not_counted(scattered):
    before = scattered.traffic
    assert scattered._engine.link.bandwidth > 0
    assert scattered.traffic == before


def test_short_messages_and_one_node_need_no_measuring(scattered, world, monkeypatch):
    monkeypatch.setattr(segments, "bandwidth", None)
    assert chosen(scattered, message=segments.EAGER_BYTES) == USUAL
    monkeypatch.delenv("MPICOMP_RANKS_PER_NODE")
    near = Comm(world)
    if near.layout[1] == 1:
        assert chosen(near) == USUAL
    near.Free()


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "direct"])
def test_the_bits_do_not_depend_on_it(scattered, algorithm, monkeypatch):
    module = {"ring": ring, "halving_doubling": halving_doubling, "direct": direct}[algorithm]
    monkeypatch.setattr(segments, "EAGER_BYTES", 1000)
    monkeypatch.setattr(module, "SEGMENT_BYTES", 7000)
    for n in (4099, 100_003):
        x = np.random.default_rng([scattered.rank, n]).standard_normal(n, np.float32)
        results = []
        for slow in (False, True):
            scattered._engine.link._bandwidth = 1e7 if slow else 1e12
            got = np.empty_like(x)
            scattered.Allreduce(x, got, MPI.SUM, algorithm)
            results.append(got)
        np.testing.assert_array_equal(*results)


def test_finished_segments_of_direct_go_out_while_pieces_come_in(scattered, monkeypatch):
    link, sent = scattered._engine.link, []
    isend = link.isend
    x = np.ones(100_000, np.float32)
    counts, displs = partition(x.size, link.size)
    own = x.ctypes.data + displs[link.rank] * x.itemsize
    monkeypatch.setattr(direct, "SEGMENT_BYTES", 7000)
    monkeypatch.setattr(segments, "EAGER_BYTES", x.nbytes)  # so that the network is not measured
    monkeypatch.setattr(link, "isend", lambda array, dest: sent.append(array.ctypes.data) or isend(array, dest))
    scattered.Allreduce(MPI.IN_PLACE, x, MPI.SUM, "direct")
    finished = [own <= address < own + counts[link.rank] * x.itemsize for address in sent]
    assert sum(finished) == (link.size - 1) * -(-counts[link.rank] // 1750)
    assert link.size == 1 or finished.index(True) < len(finished) - 1 - finished[::-1].index(False)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("kind", ["equal", "rising", "one", "some none"])
def test_blocks_of_a_gather_travel_in_segments(scattered, kind, window, monkeypatch):
    """Whatever the lengths, each rank sends all blocks but its right neighbour's, and nothing of no length."""
    monkeypatch.setattr(segments, "EAGER_BYTES", 1000)
    monkeypatch.setattr(segments, "EAGER_WINDOW", window)
    monkeypatch.setattr(allgather, "BRUCK_BYTES", 0)
    rank, size = scattered.rank, scattered.size
    counts = {"equal": [5000] * size, "rising": [1000 * at + 999 for at in range(size)],
              "one": [0] * (size - 1) + [7003], "some none": [(at % 2) * 4500 for at in range(size)]}[kind]  # fmt: skip
    blocks = [np.random.default_rng([at, window]).integers(0, 256, n, np.uint8) for at, n in enumerate(counts)]
    for slow in (False, True):
        scattered._engine.link._bandwidth = 1e7 if slow else 1e12
        before = scattered.traffic
        got, _ = scattered.gather_to_all(blocks[rank], counts)
        used = scattered.traffic - before
        np.testing.assert_array_equal(got, np.concatenate(blocks))
        leaving = [n for at, n in enumerate(counts) if at != (rank + 1) % size] if size > 1 else []
        assert used.bytes_sent == sum(leaving)
        cut = slow and max(counts) > 1000
        assert used.messages == sum(-(-n // 1000) if cut else min(n, 1) for n in leaving)
