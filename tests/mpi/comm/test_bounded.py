"""Collectives with an error bound: the bound in exact arithmetic, equal bits, refusals, fallback and bytes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from mpi4py import MPI

import mpicomp
from mpicomp.allreduce import two_hops
from mpicomp.comm import bounded_exchange
from mpicomp.comm.safety.collective_errors import run_collectively
from mpicomp.errors import BufferRefused, Disagreement, InvalidArgument
from mpicomp.ops import _cpu
from mpicomp.ops.error_bound import BLOCK

DTYPES = ("float32", "float64")
SIZES = (1, 65, 500)  # below and above a block per rank


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


def fields(rng, n, size, dtype):
    """One vector per rank and a bound: smooth, noise, constant, alternating, denormal, huge, not finite."""
    t, limits = np.arange(n), np.finfo(dtype)
    phases = rng.uniform(0, 9, (size, 1))
    yield "smooth", np.sin(t / 50 + phases), 1e-3
    yield "noise", rng.standard_normal((size, n)), 10.0 ** rng.integers(-7, 1)
    yield "tiny bound", rng.standard_normal((size, n)), 1e-13
    yield "constant", np.full((size, n), rng.uniform(-9, 9)), 1e-2
    yield "zero", np.zeros((size, n)), 1e-5
    yield "alternating", 1e3 * (-1.0) ** t + phases, 1e-3
    yield "denormal", limits.smallest_subnormal * rng.integers(-9, 9, (size, n)), 4 * float(limits.smallest_subnormal)
    yield "huge", limits.max / (2 * size) * rng.uniform(-1, 1, (size, n)), 1e-3
    special = np.sin(t / 50 + phases)
    special[rng.random((size, n)) < 2 / n] = rng.choice([np.nan, np.inf, -np.inf])
    yield "not finite", special, 1e-4


def every_field(rng, n, size):
    for dtype in DTYPES:
        for name, values, bound in fields(rng, n, size, dtype):
            yield name, np.asarray(values).astype(dtype), bound


def assert_within(got, vectors, bound, divisor=1):
    """``got`` is within len(vectors) * bound / divisor of the exact sum / divisor, and one rounding.

    Escaped blocks are added in float64, with a rounding of at most the sum of magnitudes per addition; a sum is rounded
    to its type before it is divided.
    """
    for value, terms in zip(got.tolist(), np.transpose(vectors).tolist(), strict=True):
        if not np.isfinite(terms).all():
            with np.errstate(invalid="ignore"):
                expected = np.sum(np.array(terms))
            assert str(value) == str(float(expected)), (value, terms)
            continue
        exact = sum(map(Fraction, terms)) / divisor
        rounding = half_spacing(got.dtype, value)
        if divisor > 1:
            rounding += half_spacing(got.dtype, value * divisor) / divisor
        adding = sum(abs(Fraction(term)) for term in terms) * len(terms) / divisor / 2**52
        largest = len(terms) * Fraction(bound) / divisor + rounding + adding
        assert abs(Fraction(value) - exact) <= largest, (value, terms)


def half_spacing(dtype, value):
    return Fraction(float(np.spacing(dtype.type(abs(value))))) / 2


def same_on_all(comm, x):
    """Return True if all ranks have the same bits."""
    return len(set(comm.allgather(x.tobytes()))) == 1


def assert_equal_and_within(comm, got, vectors, bound, divisor=1):
    """All ranks have the same bits, and each finds its share of the elements within the bound."""
    assert same_on_all(comm, got)
    own = slice(comm.rank, None, comm.size)
    run_collectively(comm, lambda: assert_within(got[own], vectors[:, own], bound, divisor))


def summed(comm, x, bound, **options):
    out = np.empty_like(x)
    comm.Allreduce(x, out, bound=bound, algorithm="two_hops", **options)
    return out


def test_allreduce_holds_the_bound(comm, rng):
    for n in (*SIZES, int(rng.integers(2, 2000))):
        for name, vectors, bound in every_field(rng, n, comm.size):
            print(name, n, vectors.dtype, bound)
            mine = vectors[comm.rank].copy()
            total = summed(comm, mine, bound)
            assert_equal_and_within(comm, total, vectors, bound)
            assert np.array_equal(mine, vectors[comm.rank], equal_nan=True)
            mean = summed(comm, mine, bound, op=mpicomp.AVG)
            assert_equal_and_within(comm, mean, vectors, bound, comm.size)


def test_bits_do_not_depend_on_segments_or_place(comm, rng, monkeypatch):
    n = int(rng.integers(3000, 9000))
    for name, vectors, bound in every_field(rng, n, comm.size):
        print(name)
        mine = vectors[comm.rank]
        monkeypatch.setattr(two_hops, "SEGMENT_BYTES", 256 << 10)
        monkeypatch.setattr(two_hops, "LEAST_SEGMENTS", 1)
        whole = summed(comm, mine, bound)
        for blocks in (1, int(rng.integers(2, 9))):
            monkeypatch.setattr(two_hops, "SEGMENT_BYTES", blocks * BLOCK * mine.itemsize)
            assert summed(comm, mine, bound).tobytes() == whole.tobytes()
        in_place = mine.copy()
        comm.Allreduce(MPI.IN_PLACE, in_place, bound=bound, algorithm="two_hops")
        assert in_place.tobytes() == whole.tobytes()


def test_the_ring_has_the_bits_of_two_hops(comm, rng, monkeypatch):
    """Sums, and pieces of them, also in place and if values escape."""
    for n in (*SIZES, int(rng.integers(3000, 9000))):
        monkeypatch.setattr(two_hops, "SEGMENT_BYTES", int(rng.integers(1, 9)) * BLOCK * 8)
        counts = np.bincount(rng.integers(0, comm.size, n), minlength=comm.size).tolist()
        for name, vectors, bound in every_field(rng, n, comm.size):
            print(name, n)
            mine, part = vectors[comm.rank], np.empty((2, counts[comm.rank]), vectors.dtype)
            expected = summed(comm, mine, bound)
            escaped = comm.bounded_stats.escaped_blocks
            in_place, whole, out = mine.copy(), mine.copy(), np.empty_like(mine)
            comm.Allreduce(mine, out, bound=bound, algorithm="ring")
            assert out.tobytes() == expected.tobytes()
            assert (comm.bounded_stats.algorithm, comm.bounded_stats.escaped_blocks) == ("ring", escaped)
            comm.Allreduce(MPI.IN_PLACE, in_place, bound=bound, algorithm="ring")
            assert in_place.tobytes() == expected.tobytes()
            for row, algorithm in zip(part, ("two_hops", "ring"), strict=True):
                comm.Reduce_scatter(mine, row, counts, mpicomp.AVG, bound=bound, algorithm=algorithm)
            comm.Reduce_scatter(MPI.IN_PLACE, whole, counts, mpicomp.AVG, bound=bound, algorithm="ring")
            assert part[0].tobytes() == part[1].tobytes() == whole[: counts[comm.rank]].tobytes()


def test_bits_do_not_depend_on_threads(comm, rng):
    """Several threads take longer segments, in parts."""
    n = comm.size * 200_000 + int(rng.integers(0, 1000))
    x = np.cumsum(rng.standard_normal(n)).astype(np.float32)
    x[rng.integers(0, n, 20)] = np.nan
    found = set()
    try:
        for threads in (1, 2, 3):
            _cpu.force_threads(threads)
            own = mpicomp.Comm(comm)
            found.add(summed(own, x, 1e-2).tobytes())
            assert own._engine.link.threads == threads
            own.Free()
    finally:
        _cpu.force_threads(0)
    assert len(found) == 1


@pytest.mark.parametrize("together", ["neighbours", "round robin", "first and last"])
def test_nodes_do_not_change_the_bits(comm, world, rng, monkeypatch, together):
    """Nodes of several ranks, also of unequal numbers: integers and escaped values are added as without nodes."""
    if comm.size < 3:
        pytest.skip("two nodes, one of several ranks, need three ranks")
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "2")
    nodes = mpicomp.Comm(world)
    link, ranks = nodes._engine.link, list(range(comm.size))
    expected = [ranks[at : at + 2] for at in range(0, comm.size, 2)]
    assert link.ranks_by_node == expected
    if together != "neighbours":
        link._ranks_by_node = {"round robin": [ranks[::2], ranks[1::2]], "first and last": [[0, comm.size - 1],
                               ranks[1:-1]]}[together]
    for n in (1, int(rng.integers(2, 9000))):
        for name, vectors, bound in every_field(rng, n, comm.size):
            print(name, n, vectors.dtype, bound)
            mine = vectors[comm.rank]
            flat = summed(comm, mine, bound)
            for blocks in (4096, int(rng.integers(1, 9))):
                monkeypatch.setattr(two_hops, "SEGMENT_BYTES", blocks * BLOCK * mine.itemsize)
                assert summed(nodes, mine, bound).tobytes() == flat.tobytes()
            assert nodes.bounded_stats.escaped_blocks == comm.bounded_stats.escaped_blocks
    nodes.Free()


def test_bytes_between_nodes_do_not_grow_with_their_ranks(comm, world, monkeypatch):
    if comm.size < 4:
        pytest.skip("two nodes of two ranks need four ranks")
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "2")
    n = 200_000
    x, sent = np.sin(np.arange(n) / 300 + comm.rank).astype(np.float32), {}
    for name, nodes in (("nodes", mpicomp.Comm(world)), ("flat", comm)):
        link, bytes_across = nodes._engine.link, 0
        isend = link.isend

        def counted(array, dest, isend=isend):
            nonlocal bytes_across
            bytes_across += array.nbytes if dest // 2 != comm.rank // 2 else 0
            return isend(array, dest)

        with monkeypatch.context() as patch:
            patch.setattr(link, "isend", counted)
            summed(nodes, x, 1e-4)
        sent[name] = world.allreduce(bytes_across)
        received = nodes.traffic
        assert world.allreduce(received.bytes_sent) == world.allreduce(received.bytes_received)
        if name == "nodes":
            stream = x.nbytes / nodes.bounded_stats.ratio
            nodes.Free()
    count = -(-comm.size // 2)
    assert sent["nodes"] == pytest.approx(2 * (count - 1) * stream, rel=0.3)
    assert sent["nodes"] < 0.7 * sent["flat"]


def test_integer_sums_do_not_depend_on_the_order_of_ranks(comm, rng):
    """Without escaped blocks the same vectors on other ranks give the same bits."""
    vectors = np.sin(np.arange(2000) / 30 + rng.uniform(0, 9, (comm.size, 1))).astype(np.float32)
    first = summed(comm, vectors[comm.rank], 1e-4)
    assert comm.bounded_stats.escaped_blocks == 0
    assert summed(comm, vectors[(comm.rank + 1) % comm.size], 1e-4).tobytes() == first.tobytes()


def test_relative_bound(comm, rng):
    for dtype in DTYPES:
        vectors = (rng.uniform(-5, 5, (comm.size, 700)) * 10.0 ** rng.integers(-9, 9)).astype(dtype)
        spread = float(vectors.max()) - float(vectors.min())
        vectors[0, 3] = rng.choice([np.nan, np.inf])
        total = summed(comm, vectors[comm.rank], 1e-3, relative=True)
        stats = comm.bounded_stats
        assert stats.bound == pytest.approx(1e-3 * spread, rel=0.5)  # of what is left without one element
        assert stats.largest_error == comm.size * stats.bound
        assert_equal_and_within(comm, total, vectors, stats.bound)


@pytest.mark.parametrize("value", [0.0, 2.5, np.nan])
def test_a_constant_field_takes_the_exact_path(comm, value):
    x, out = np.full(1000, value), np.empty(1000)
    comm.Allreduce(x, out, mpicomp.AVG, bound=1e-3, relative=True)
    np.testing.assert_array_equal(out, x)
    assert comm.bounded_stats.algorithm == "exact"


def test_relative_range_that_overflows(comm):
    largest = float(np.finfo(np.float64).max)
    x, out = np.array([largest, -largest, 0.0] * 50), np.empty(150)
    comm.Allreduce(x, out, mpicomp.AVG, bound=1e-3, relative=True, algorithm="two_hops")
    assert comm.bounded_stats.bound == pytest.approx(2e-3 * largest)


def counts_of(rng, size):
    yield [200] * size
    yield [int(count) for count in rng.integers(0, 300, size)]
    yield [0] * (size - 1) + [77]


def test_reduce_scatter(comm, rng):
    rank, size = comm.rank, comm.size
    for counts in counts_of(rng, size):
        begin = sum(counts[:rank])
        for name, vectors, bound in every_field(rng, sum(counts) or 1, size):
            if sum(counts) == 0:
                continue
            print(name, counts)
            part = vectors[:, begin : begin + counts[rank]]
            for op, divisor in ((MPI.SUM, 1), (mpicomp.AVG, size))[0 if name == "noise" else 1 :]:
                out = np.empty(counts[rank], vectors.dtype)
                comm.Reduce_scatter(vectors[rank].copy(), out, counts, op, bound=bound, algorithm="two_hops")
                assert_within(out, part, bound, divisor)
            in_place = vectors[rank].copy()
            comm.Reduce_scatter(MPI.IN_PLACE, in_place, np.array(counts), mpicomp.AVG, bound, algorithm="two_hops")
            assert in_place[: counts[rank]].tobytes() == out.tobytes()
            if len(set(counts)) == 1:
                block = np.empty_like(out)
                comm.Reduce_scatter_block(vectors[rank].copy(), block, mpicomp.AVG, bound=bound, algorithm="two_hops")
                assert block.tobytes() == out.tobytes()


def test_allgather(comm, rng):
    rank, size = comm.rank, comm.size
    for n in SIZES[1:]:
        for name, vectors, bound in every_field(rng, n, size):
            print(name, n)
            out = np.empty(n * size, vectors.dtype)
            comm.Allgather(vectors[rank].copy(), out, bound=bound, algorithm="two_hops")
            assert_equal_and_within(comm, out, vectors.reshape(1, -1), bound)
            in_place = np.zeros_like(out)
            in_place[rank * n : (rank + 1) * n] = vectors[rank]
            comm.Allgather(MPI.IN_PLACE, in_place, bound=bound, algorithm="two_hops")
            assert in_place.tobytes() == out.tobytes()


def test_bcast(comm, rng):
    for root in {0, comm.size - 1}:
        for n in SIZES[1:]:
            for name, vectors, bound in every_field(rng, n, comm.size):
                print(name, n)
                x = vectors[root].copy() if comm.rank == root else np.zeros_like(vectors[0])
                comm.Bcast(x, root, bound=bound, algorithm="two_hops")
                assert_equal_and_within(comm, x, vectors[root][None], bound)


def test_no_elements(comm):
    x, out = np.empty(0), np.empty(0)
    for options in ({"bound": 1e-3}, {"bound": 1e-3, "relative": True}):
        comm.Allreduce(x, out, **options)
        comm.Reduce_scatter_block(x, out, **options)
        comm.Allgather(x, out, **options)
        comm.Bcast(x, 0, **options)
    assert comm.bounded_stats.reason == "there are no elements"


def test_exact_path_on_one_node(comm):
    """``auto`` never compresses where ranks share memory."""
    rank, size = comm.rank, comm.size
    x = np.arange(600.0).reshape(size, -1)[rank].copy() if 600 % size == 0 else np.arange(600.0)
    out = np.empty_like(x)
    comm.Allreduce(x, out, mpicomp.AVG, bound=1e-3)
    expected = comm.allreduce(x) / size
    np.testing.assert_allclose(out, expected, rtol=1e-14)
    assert comm.bounded_stats.algorithm == "exact"
    assert comm.bounded_stats.reason in ("the ranks share memory", "there is one rank")
    whole = np.tile(x, size) + rank
    part = np.empty_like(x)
    comm.Reduce_scatter_block(whole, part, mpicomp.AVG, bound=1e-3)
    np.testing.assert_allclose(part, comm.allreduce(whole)[rank * x.size :][: x.size] / size, rtol=1e-14)
    gathered = np.empty(x.size * size)
    comm.Allgather(x, gathered, bound=1e-3)
    np.testing.assert_array_equal(gathered, np.concatenate(comm.allgather(x)))
    root_values = comm.bcast(x)
    comm.Bcast(x, bound=1e-3)
    np.testing.assert_array_equal(x, root_values)


@pytest.fixture
def network(world, monkeypatch):
    """A communicator whose ranks count as nodes of their own, on a slow network."""
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "1")
    made = mpicomp.Comm(world)
    made._engine.link._bandwidth = 1e7
    yield made
    made.Free()


def test_fallback_on_noise(network, rng):
    if network.size == 1:
        pytest.skip("one rank has no network")
    x = rng.standard_normal(200_000).astype(np.float32)
    out, exact = np.empty_like(x), np.empty_like(x)
    network.Allreduce(x, out, bound=1e-9)
    stats = network.bounded_stats
    assert stats.algorithm == "exact"
    assert "compress" in stats.reason
    assert (stats.largest_error, stats.ratio) == (0, 1)
    network.Allreduce(x, exact)
    assert out.tobytes() == exact.tobytes()


def test_one_noisy_rank_is_enough_to_fall_back(network, rng):
    if network.size == 1:
        pytest.skip("one rank has no network")
    x = np.zeros(200_000) if network.rank else rng.standard_normal(200_000)
    network.Allreduce(MPI.IN_PLACE, x, bound=1e-14)
    assert network.bounded_stats.algorithm == "exact"


def test_auto_compresses_smooth_data(network):
    if network.size == 1:
        pytest.skip("one rank has no network")
    n = 300_000
    x, out = np.sin(np.arange(n) / 1000).astype(np.float32), np.empty(n, np.float32)
    before = network.traffic
    network.Allreduce(x, out, bound=1e-4)
    used, stats, size = network.traffic - before, network.bounded_stats, network.size
    assert stats.algorithm == "two_hops"
    assert stats.ratio > 5
    assert stats.escaped_blocks == 0
    assert stats.largest_error == size * 1e-4
    dense = 2 * (size - 1) / size * x.nbytes
    assert used.bytes_sent == pytest.approx(dense / stats.ratio, rel=0.25)
    total = network.allreduce(used.bytes_sent), network.allreduce(used.bytes_received)
    assert total[0] == total[1]


def test_fast_networks_and_short_vectors_are_exact(network, monkeypatch):
    if network.size == 1:
        pytest.skip("one rank has no network")
    x = np.zeros(1000)
    network.Allreduce(MPI.IN_PLACE, x, bound=1e-4)
    assert network.bounded_stats.reason == "the vector is short"
    network._engine.link._bandwidth = 2 * bounded_exchange.CODER_BYTES_PER_S
    x = np.zeros(500_000)
    network.Allreduce(MPI.IN_PLACE, x, bound=1e-4)
    assert network.bounded_stats.reason == "the network is as fast as the coder"


def test_reproducible_never_falls_back(world, rng):
    own = mpicomp.Comm(world, reproducible=True)
    x = rng.standard_normal(3000)
    own.Allreduce(x, first := np.empty_like(x), bound=1e-14)
    assert own.bounded_stats.algorithm == "two_hops"
    constant = np.full(100, 0.1 + own.rank)
    own.Allreduce(constant, out := np.empty(100), bound=1e-3, relative=True)
    assert same_on_all(own, out)
    assert same_on_all(own, first)
    own.Free()


def bad_calls():
    x, z = np.ones(6, np.float32), np.ones(6, np.complex64)
    sums = "an error bound needs op=MPI.SUM or mpicomp.AVG, got "
    yield from ((x, {"bound": bound}, InvalidArgument, "bound must be a positive finite number")
                for bound in (0, -1.0, np.nan, np.inf, "small", True, 10**400))
    yield x, {"bound": None, "relative": True}, InvalidArgument, "pass bound="
    yield x, {"op": mpicomp.AVG}, InvalidArgument, "pass bound="
    yield x, {"bound": 1e-3, "relative": "yes"}, InvalidArgument, "relative must be True or False"
    yield x, {"bound": 1e-3, "algorithm": "direct"}, InvalidArgument, "algorithm='direct' has no error bound"
    yield x, {"bound": 1e-3, "op": MPI.MAX}, InvalidArgument, f"{sums}max"
    yield x, {"bound": 1e-3, "op": "mean"}, InvalidArgument, f"{sums}'mean'"
    yield x.astype(int), {"bound": 1e-3}, BufferRefused, "must hold float32 or float64 .*, got int64"
    yield z, {"bound": 1e-3}, BufferRefused, "got complex64"
    yield x.astype(np.float16), {"bound": 1e-3}, BufferRefused, "got float16"


@pytest.mark.parametrize("everywhere", [True, False])
def test_bad_arguments_fail_on_every_rank(comm, everywhere):
    """Also if only one rank gives them."""
    for x, options, kind, text in bad_calls():
        wrong = everywhere or comm.rank == comm.size - 1
        given, options = (x, options) if wrong else (np.ones(6, np.float32), {"bound": 1e-3})
        with pytest.raises(kind, match=text):
            comm.Allreduce(MPI.IN_PLACE, given.copy(), **options)
    user = MPI.Op.Create(lambda a, b, datatype: None)
    with pytest.raises(InvalidArgument, match="got user-defined"):
        comm.Allreduce(MPI.IN_PLACE, np.ones(3), user, bound=1e-3)
    user.Free()
    for call in (
        lambda: comm.Bcast(np.ones(3), comm.size, bound=1e-3),
        lambda: comm.Reduce_scatter(np.ones(3), np.ones(3), [1] * (comm.size + 1), bound=1e-3),
        lambda: comm.Reduce_scatter(np.ones(3), np.ones(3), bound=1e-3),
        lambda: comm.Reduce_scatter(np.ones(comm.size), np.ones(1), [1.5] * comm.size, bound=1e-3),
        lambda: comm.Allgather(np.ones(2), np.ones(2 * comm.size + 1), bound=1e-3),
        lambda: comm.Allgather(np.ones(2, np.float32), np.ones(2 * comm.size), bound=1e-3),
    ):
        with pytest.raises((InvalidArgument, BufferRefused), match="rank 0" if comm.size > 1 else "got"):
            call()
    with pytest.raises(InvalidArgument, match="algorithm='ring' has no error bound in Bcast: choose auto or two_hops,"):
        comm.Bcast(np.ones(3), bound=1e-3, algorithm="ring")


def test_an_algorithm_without_a_bound_is_refused(comm):
    """MPI's own calls, which run then, do not take it."""
    x, size = np.ones(comm.size), comm.size
    for verb, arguments in (("Bcast", (x,)), ("Allgather", (x[:1], x.copy())), ("Reduce_scatter_block", (x, x[:1])),
                            ("Reduce_scatter", (x, x[:1].copy(), [1] * size))):  # fmt: skip
        with pytest.raises(InvalidArgument, match=f"and any algorithm of {verb} need an error bound: pass bound="):
            getattr(comm, verb)(*arguments, algorithm="two_hops")


def test_different_arguments_fail_on_every_rank(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    last = comm.rank == comm.size - 1
    x = np.ones(10)
    different = ({"bound": 2e-3}, {"relative": True}, {"op": mpicomp.AVG}, {"algorithm": "two_hops"}, {"bound": None})
    for other in different:
        with pytest.raises(Disagreement, match=f"rank {comm.size - 1}"):
            comm.Allreduce(MPI.IN_PLACE, x, **({"bound": 1e-3} | (other if last else {})))
    with pytest.raises(Disagreement, match="root=0"):
        comm.Bcast(x, int(last), bound=1e-3)
    assert (x == 1).all()
    comm.Allreduce(MPI.IN_PLACE, x, bound=np.float64(1e-3) if last else 1e-3, algorithm="two_hops")  # one value
    np.testing.assert_allclose(x, comm.size, atol=comm.size * 1e-3)


def test_calls_are_recorded(comm):
    class Recorder:
        doing, events, metrics = None, [], {}

        def now(self):
            return 1

        def event(self, kind, start, **fields):
            self.events.append((kind, fields))

        def metric(self, name, step, value):
            self.metrics[name] = step, value

    comm.recorder = recorder = Recorder()
    try:
        comm.Allreduce(MPI.IN_PLACE, np.zeros(640), bound=1e-3, relative=False, algorithm="two_hops")
    finally:
        comm.recorder = None
    (kind, fields), = recorder.events
    assert kind == "collective"
    assert (fields["algo"], fields["scheme"], fields["op"]) == ("two_hops", "bound=0.001", "sum")
    assert fields["nbytes_dense"] == 640 * 8
    assert recorder.metrics == {"ratio (bound=0.001)": (-1, comm.bounded_stats.ratio),
                                "largest error (bound=0.001)": (-1, comm.size * 1e-3)}


def test_plain_calls_are_mpi4pys(comm):
    """Without a bound nothing changes."""
    x = np.arange(4, dtype=np.int32)
    out = np.empty(4 * comm.size, np.int32)
    comm.Allgather(x, out)
    np.testing.assert_array_equal(out, np.tile(x, comm.size))
    part = np.empty(4, np.int32)
    comm.Reduce_scatter_block(out, part, MPI.MAX)
    np.testing.assert_array_equal(part, x)
    comm.Reduce_scatter(out, part, [4] * comm.size)
    np.testing.assert_array_equal(part, comm.size * x)
    text = bytearray(b"abc" if comm.rank == 0 else b"xyz")
    comm.Bcast(text)
    assert text == b"abc"
