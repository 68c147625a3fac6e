"""Sums of float32 that travel in half precision."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from emulated_gpu import emulate, on_device, on_host
from refusals import assert_nan_is_refused

from mpicomp import Comm, Reducer
from mpicomp.allreduce import direct, narrowed, segments
from mpicomp.errors import InvalidArgument, NonFiniteGradient
from mpicomp.schemes import averaging

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
LENGTHS = (0, 1, 2, 7, 1000, 4099)
N = 5003

kinds = pytest.mark.parametrize("kind", DTYPES)
schedules = pytest.mark.parametrize("algorithm", ["auto", "direct", "ring"])


@pytest.fixture(params=["one node", "nodes of one rank", "nodes of two ranks"])
def own(request, world, monkeypatch):
    """Short segments, several of which are in flight."""
    monkeypatch.setattr(direct, "SEGMENT_BYTES", 600)
    monkeypatch.setattr(narrowed, "PART", 300)
    if "nodes" in request.param:
        monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "2" if "two" in request.param else "1")
    comm = Comm(world)
    yield comm
    comm.Free()


@pytest.fixture
def scattered(world, monkeypatch):
    """Every rank a node of its own."""
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "1")
    monkeypatch.setattr(direct, "SEGMENT_BYTES", 600)
    comm = Comm(world)
    yield comm
    comm.Free()


def rounded(x, kind):
    with np.errstate(over="ignore"):
        return x.astype(DTYPES[kind]).astype(np.float32)


def expected(comm, x, kind, factor):
    """The sum in rank order."""
    total = np.zeros_like(x)
    for one in comm.allgather(rounded(x, kind)):
        total = total + one
    return rounded(total, kind) * np.float32(factor)


def values_of(x):
    """The values, and the spans that were asked for."""
    asked = []

    def values(begin, end):
        asked.append((begin, end))
        return x[begin:end]

    return values, asked


@kinds
@schedules
def test_bits(scattered, kind, algorithm, seed):
    for n in LENGTHS:
        x = np.random.default_rng([seed, n, scattered.rank]).standard_normal(n, np.float32) * 100
        values, asked = values_of(x)
        out = np.full(n, 7, np.float32)
        assert scattered.sum_in_half(values, out, kind, algorithm, 1 / 3)
        np.testing.assert_array_equal(out, expected(scattered, x, kind, 1 / 3))
        assert sorted(i for begin, end in asked for i in range(begin, end)) == [*range(n)]  # each once


@kinds
@schedules
def test_whole_numbers_on_all_nodes_and_in_place(own, kind, algorithm, seed):
    for n in LENGTHS:
        x = np.random.default_rng([seed, n, own.rank]).integers(-9, 10, n).astype(np.float32)
        want = np.sum(own.allgather(x), axis=0, dtype=np.float32)
        assert own.sum_in_half(lambda begin, end, x=x: x[begin:end], x, kind, algorithm)
        np.testing.assert_array_equal(x, want)


@kinds
def test_slow_networks_have_short_segments(scattered, kind, seed, monkeypatch):
    monkeypatch.setattr(segments, "EAGER_BYTES", 500)
    x = np.random.default_rng([seed, scattered.rank]).standard_normal(N, np.float32)
    for rate in (1e7, 1e12):
        scattered._engine.link._bandwidth = rate
        out = np.empty_like(x)
        assert scattered.sum_in_half(values_of(x)[0], out, kind)
        np.testing.assert_array_equal(out, expected(scattered, x, kind, 1))


def test_bytes_on_the_wire(scattered):
    x, size = np.ones(N, np.float32), scattered.size
    before = scattered.traffic
    scattered.sum_in_half(values_of(x)[0], x, "float16", "direct")
    sent = scattered.allreduce((scattered.traffic - before).bytes_sent)
    assert sent == 2 * (size - 1) * 2 * N


@pytest.mark.parametrize("wrong", [1e5, np.nan, -np.inf])
@pytest.mark.parametrize("place", [0, N // 2, N - 1])
def test_a_sum_that_is_not_finite_is_not_written(own, wrong, place):
    x = np.ones(N, np.float32)
    if own.rank == own.size - 1:
        x[place] = wrong
    for in_place in (False, True):
        mine = x.copy()
        out = mine if in_place else np.full(N, 7, np.float32)
        kept = out.copy()
        assert not own.sum_in_half(values_of(mine)[0], out, "float16")
        np.testing.assert_array_equal(out, kept)
    out = np.empty(N, np.float32)
    assert own.sum_in_half(values_of(x)[0], out, "float16", finite=False)
    np.testing.assert_array_equal(np.isfinite(out), np.arange(N) != place)


def test_lossy_and_unknown_algorithms_are_refused(own):
    x = np.ones(3, np.float32)
    for name in ("int8", "rings"):
        with pytest.raises(InvalidArgument, match=name):
            own.sum_in_half(values_of(x)[0], x, "float16", name)


# ---- the scheme `half`
@pytest.mark.parametrize("algorithm", ["auto", "ring"])
@pytest.mark.parametrize("text", ["half", "half:values=bfloat16", "half:memory=momentum-corrected"])
def test_half_is_the_mean(own, text, algorithm, seed):
    x = np.random.default_rng([seed, own.rank]).integers(-9, 10, N).astype(np.float32)
    mean = np.sum(own.allgather(x), axis=0, dtype=np.float32) * np.float32(1 / own.size)
    reducer, out = Reducer(own, text, algorithm=algorithm), np.empty_like(x)
    np.testing.assert_array_equal(reducer.reduce(x), mean)
    if "memory" not in text:
        before = x.copy()
        assert reducer.reduce(x, out=out) is out
        np.testing.assert_array_equal(out, mean)
        np.testing.assert_array_equal(x, before)
        if algorithm == "ring" and own.size > 1:
            assert reducer.stats.bytes_sent == pytest.approx(2 * (own.size - 1) / own.size * 2 * N, abs=8 * own.size)


@pytest.mark.emulation
@pytest.mark.parametrize("bucket_bytes", [4096, 1 << 40])
def test_device_arrays_have_the_same_mean(own, bucket_bytes, monkeypatch, seed):
    """In buckets that are encoded on the device; an overflow leaves what was given."""
    monkeypatch.setattr(averaging, "BUCKET_BYTES", bucket_bytes)
    x = np.random.default_rng([seed, own.rank]).integers(-9, 10, N).astype(np.float32)
    mean = np.sum(own.allgather(x), axis=0, dtype=np.float32) * np.float32(1 / own.size)
    with emulate():
        reducer, out = Reducer(own, "half"), on_device(x)
        reducer.reduce(on_device(x), out=out)
        np.testing.assert_array_equal(on_host(out), mean)
        with pytest.raises(NonFiniteGradient, match="values=float16 overflowed in step 1"):
            reducer.reduce(on_device(np.full(N, 6e4 if own.size > 1 else 1e5, np.float32)), out=out)
        np.testing.assert_array_equal(on_host(out), mean)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_sum_that_overflows_changes_nothing(own, in_place):
    """The last element overflows: those before it are not written either."""
    gradient = np.ones(N, np.float32)
    gradient[-1] = 6e4 if own.size > 1 else 1e5
    before, out = gradient.copy(), gradient if in_place else np.full(N, 7, np.float32)
    kept = out.copy()
    reducer = Reducer(own, "half")
    with pytest.raises(NonFiniteGradient, match="values=float16 overflowed in step 0"):
        reducer.reduce(gradient, out=out)
    np.testing.assert_array_equal(gradient, before)
    np.testing.assert_array_equal(out, kept)
    gradient[-1] = 1
    np.testing.assert_array_equal(reducer.reduce(gradient, out=out), 1)


def test_the_overflow_of_one_of_several_workers_is_refused(own):
    """Their sum travels in float32."""
    gradient = np.full((2, 3), 1e5, np.float32)
    with pytest.raises(NonFiniteGradient, match="values=float16 overflowed in step 0"):
        Reducer(own, "half", workers=2).reduce(gradient)


def test_an_overflow_that_is_allowed_is_averaged(own):
    gradient = np.full(3, 1e5, np.float32)
    np.testing.assert_array_equal(Reducer(own, "half", nonfinite="allow").reduce(gradient), np.inf)


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_nan_is_blamed_on_its_gradient(own, policy):
    reducer = Reducer(own, "half", nonfinite=policy)
    assert_nan_is_refused(reducer, N)
    np.testing.assert_array_equal(reducer.reduce(np.ones(N, np.float32)), 1)


def test_there_is_no_second_vector(own, allocated):
    """The mean is written where the caller wants it; codes have work memory that is kept."""
    reducer, x = Reducer(own, "half"), np.ones(N, np.float32)
    reducer.reduce(x, out=np.empty_like(x))
    allocated.clear()
    reducer.reduce(x, out=np.empty_like(x))
    assert max(allocated, default=0) < N
