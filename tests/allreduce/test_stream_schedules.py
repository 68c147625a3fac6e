"""Exchanges of error-bounded streams among 1 to 16 ranks, threads of one process: the bound, and equal bits."""

import os
import threading
from collections import defaultdict, deque
from fractions import Fraction
from queue import SimpleQueue

import numpy as np
import pytest

from mpicomp.allreduce import two_hops
from mpicomp.allreduce.ring_of_streams import Ring
from mpicomp.allreduce.two_hops import Pieces, TwoHops, all_reduce_pieces
from mpicomp.comm.bounded_exchange import BoundedCodes
from mpicomp.ops import cpu
from mpicomp.ops.error_bound import BLOCK

TIMEOUT = 60  # seconds that a rank waits for a message
RANKS = range(1, 17)
BOUND = 1e-2


class Ranks:
    """Mailboxes that the links of threads share."""

    def __init__(self, nodes):
        self.nodes, self.size = nodes, sum(map(len, nodes))
        self.boxes = {(a, b): SimpleQueue() for a in range(self.size) for b in range(self.size)}
        self.barrier, self.given = threading.Barrier(self.size, timeout=TIMEOUT), {}

    def run(self, work):
        """Return the value of ``work(link)`` on each rank."""
        found = [None] * self.size

        def one(rank):
            try:
                found[rank] = work(Link(self, rank))
            except Exception as error:
                found[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for value in found:
            if isinstance(value, Exception):
                raise value
        assert all(box.empty() for box in self.boxes.values())
        return found


class Link:
    """Messages between threads: what `StreamLink` promises, as far as these schedules use it."""

    threads = 1

    def __init__(self, ranks, rank):
        self.ranks, self.rank, self.size = ranks, rank, ranks.size
        self.posted = defaultdict(deque)
        self.ranks_by_node = ranks.nodes
        self.ranks_per_node, self.one_node = max(map(len, ranks.nodes)), len(ranks.nodes) == 1

    def isend(self, array, dest):
        if array.size:
            self.ranks.boxes[self.rank, dest].put(array.copy())

    def irecv(self, array, source):
        if not array.size:
            return None
        self.posted[source].append(request := [source, array])
        return request

    def wait(self, request):
        """Messages go to receives in the order of both."""
        while request:
            source, _ = request
            first = self.posted[source].popleft()
            message = self.ranks.boxes[source, self.rank].get(timeout=TIMEOUT)
            first.pop()[: message.size] = message
            first.clear()

    def uncount(self, nbytes):
        assert nbytes >= 0

    def native_allreduce(self, work, op):
        assert op == "max"
        self.ranks.given[self.rank] = work.copy()
        self.ranks.barrier.wait()
        work[:] = np.max(list(self.ranks.given.values()), axis=0)


def scratch():
    made = {}
    return lambda n, dtype, slot="": made.setdefault((slot, n), np.empty(n, dtype))


def nodes_of(rng, size):
    """Nodes with any ranks."""
    cuts = np.sort(rng.choice(np.arange(1, size), rng.integers(0, size), replace=False)) if size > 1 else []
    return [sorted(node.tolist()) for node in np.split(rng.permutation(size), cuts)]


def vectors_of(rng, kind, size, n):
    smooth = np.sin(np.arange(n) / 40 + rng.uniform(0, 9, (size, 1)))
    if kind == "not finite":
        for at in rng.integers(0, n, 2):
            smooth[rng.integers(size), at] = rng.choice([np.nan, np.inf, -np.inf])
    elif kind == "huge":
        smooth[rng.integers(size), rng.integers(n)] = 3e37 / size
    elif kind == "denormal":
        smooth *= np.finfo(np.float32).smallest_subnormal * 5
    elif kind == "alternating":
        smooth += 1000 * (-1.0) ** np.arange(n)
    return smooth.astype(np.float32)


def all_reduced(nodes, vectors, divisor, schedule, by_nodes=False):
    """The result on all ranks."""
    size, n = vectors.shape

    def work(link):
        out = np.full(n, -7, np.float32)
        codes = BoundedCodes(cpu, out.dtype, BOUND, size, divisor)
        schedule(link, all_reduce_pieces(link, vectors[link.rank], out, BLOCK, by_nodes), codes, scratch()).run()
        return out

    return Ranks(nodes).run(work)


def assert_within(got, vectors, divisor):
    for value, terms in zip(got.tolist(), vectors.T.tolist(), strict=True):
        if not np.isfinite(terms).all():
            with np.errstate(invalid="ignore"):
                assert str(value) == str(float(np.sum(terms)))
            continue
        rounding = Fraction(float(np.spacing(np.float32(abs(value))))) / 2 * (1 if divisor == 1 else 2)
        adding = sum(abs(Fraction(term)) for term in terms) * len(terms) / divisor / 2**52
        exact, allowed = sum(map(Fraction, terms)) / divisor, Fraction(BOUND) * len(terms) / divisor
        assert abs(Fraction(value) - exact) <= allowed + rounding + adding, (value, terms)


@pytest.fixture
def rng():
    """Fresh random numbers, whose seed is shown if a test fails, and set by MPICOMP_SEED."""
    seed = int(os.environ.get("MPICOMP_SEED", np.random.SeedSequence().entropy % 2**31))
    print(f"MPICOMP_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def short_segments(monkeypatch):
    monkeypatch.setattr(two_hops, "SEGMENT_BYTES", 2 * BLOCK * 4)


@pytest.mark.parametrize("size", RANKS)
def test_all_reduces_hold_the_bound_with_equal_bits(rng, short_segments, size):
    """Two hops, two hops of nodes and the ring."""
    nodes = nodes_of(rng, size)
    for kind in ("smooth", "not finite", "huge", "denormal", "alternating"):
        vectors = vectors_of(rng, kind, size, int(rng.integers(1, 20 * BLOCK)))
        divisor = int(rng.choice([1, size]))
        found = [one.tobytes() for how in ((TwoHops, False), (TwoHops, True), (Ring, False))
                 for one in all_reduced(nodes, vectors, divisor, *how)]  # fmt: skip
        assert len(set(found)) == 1, (kind, nodes)
        assert_within(np.frombuffer(found[0], np.float32), vectors, divisor)


@pytest.mark.parametrize("size", RANKS)
def test_reduce_scatters_have_equal_bits(rng, short_segments, size):
    """Pieces of any lengths; result of the two hops, and of the ring, on nodes in any order."""
    counts = rng.integers(0, 4 * BLOCK, size)
    begins = (np.cumsum(counts) - counts).tolist()
    nodes = nodes_of(rng, size)
    for kind in ("smooth", "not finite"):
        vectors = vectors_of(rng, kind, size, int(counts.sum()) + 1)

        def work(link, schedule, vectors=vectors):
            out = np.full(counts[link.rank], -7, np.float32)
            pieces = Pieces(counts.tolist(), [range(size)] * size, vectors[link.rank], begins, out, [0] * size, False)
            schedule(link, pieces, BoundedCodes(cpu, out.dtype, BOUND, size, 1), scratch()).run()
            return out

        both = [np.concatenate(Ranks(nodes).run(lambda link, how=how: work(link, how))) for how in (TwoHops, Ring)]
        assert both[0].tobytes() == both[1].tobytes()
        assert_within(both[0], vectors[:, :-1], 1)
