"""Long dense vectors of a ``Reducer`` go in buckets whose all-reduces are in flight at once."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_gpu import emulate, on_device, on_host
from mpi4py import MPI
from refusals import assert_nan_is_refused

from mpicomp import Comm, Reducer
from mpicomp.errors import InvalidArgument
from mpicomp.reducer import run_step
from mpicomp.schemes import averaging

THREADS = MPI.Query_thread() == MPI.THREAD_MULTIPLE
N = 5003  # float32: five buckets of 4 KiB
WHOLE = 1 << 40
CASES = [
    ("dense:values=float64", 1), ("dense", 2), ("dense:values=float64", 2),
    ("scaled-integer:bits=32", 1), ("dense:memory=residual,values=float16", 2), ("topk:k=40,dense=1d", 1),
    ("scalecom:chunk=2", 2), ("dgc:k=40,dense=1d,nesterov=yes", 2),
]  # fmt: skip


@pytest.fixture
def own(world):
    comm = Comm(world)
    yield comm
    comm.Free()


@pytest.fixture
def started(own, monkeypatch):
    """Number of elements of every all-reduce in flight, in order."""
    sizes, start = [], own.start_allreduce
    monkeypatch.setattr(own, "start_allreduce", lambda x, *rest: sizes.append(x.size) or start(x, *rest))
    return sizes


def reduced(comm, text, bucket_bytes, monkeypatch, vectors, workers=1, **options):
    """Means and bytes sent of some steps, with buckets of a size."""
    monkeypatch.setattr(averaging, "BUCKET_BYTES", bucket_bytes)
    reducer = Reducer(comm, text, workers=workers, algorithm="ring", **options)
    means = [reducer.reduce({"w": w.copy(), "b": b.copy()}) for w, b in vectors]
    return means, reducer.stats.bytes_sent


def drawn(comm, seed, workers=1, whole_numbers=True):
    """Three steps of this rank's gradients: small whole numbers, whose sum has the same bits in any order."""
    rng = np.random.default_rng([seed, comm.rank])
    rows = (workers,) if workers > 1 else ()
    shapes = [(*rows, N, 1), (*rows, N)]
    if whole_numbers:
        return [[rng.integers(-8, 9, shape).astype(np.float32) for shape in shapes] for _ in range(3)]
    return [[rng.standard_normal(shape).astype(np.float32) for shape in shapes] for _ in range(3)]


@pytest.mark.parametrize(("text", "workers"), CASES)
def test_same_as_in_one_piece(own, started, text, workers, monkeypatch, seed):
    vectors = drawn(own, seed, workers)
    buckets, sent = reduced(own, text, 4096, monkeypatch, vectors, workers)
    in_flight = len(started)
    whole, sent_whole = reduced(own, text, WHOLE, monkeypatch, vectors, workers)
    for one, other in zip(buckets, whole, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    assert len(started) == in_flight
    assert (in_flight >= 9) == (THREADS and own.size > 1)
    assert sent == pytest.approx(sent_whole, rel=0.01, abs=64)  # a bucket's blocks differ by an element


@pytest.mark.emulation
@pytest.mark.parametrize("text", ["dense:values=float64", "scaled-integer:bits=32", "topk:k=40,dense=1d"])
def test_device_arrays(own, started, text, monkeypatch, seed):
    """The bits of host arrays, and of one piece; the helper thread waits for the caller's stream."""
    vectors = drawn(own, seed)
    monkeypatch.setattr(run_step, "IN_FLIGHT_BYTES", 1)
    expected, _ = reduced(own, text, 4096, monkeypatch, vectors)
    on_the_host = len(started)
    with emulate() as device:
        given = [[on_device(one) for one in pair] for pair in vectors]
        buckets, _ = reduced(own, text, 4096, monkeypatch, given)
        assert len(started) == 2 * on_the_host
        assert device.log.count("record") == device.log.count("wait") == device.log.count("beside") == on_the_host
        whole, _ = reduced(own, text, WHOLE, monkeypatch, given)
    for host, one, other in zip(expected, buckets, whole, strict=True):
        for name in host:
            np.testing.assert_array_equal(on_host(one[name]), host[name])
            np.testing.assert_array_equal(on_host(other[name]), host[name])


@pytest.mark.parametrize("reproducible", [False, True])
def test_mean_and_bits(world, reproducible, monkeypatch, seed):
    """In the reproducible mode the bits of any numbers are those of the sum in rank order."""
    comm = Comm(world, reproducible=reproducible)
    vectors = drawn(comm, seed, whole_numbers=not reproducible)
    means, _ = reduced(comm, "dense", 4096, monkeypatch, vectors)
    for mean, (w, _) in zip(means, vectors, strict=True):
        total = np.zeros_like(w)
        for i, one in enumerate(world.allgather(w)):
            total = one.copy() if i == 0 else total + one
        np.testing.assert_array_equal(mean["w"], total * np.float32(1 / comm.size))
    comm.Free()


def test_buckets_are_even_and_cover_the_vector(own, started, allocated, monkeypatch):
    if not THREADS or own.size == 1:
        return
    monkeypatch.setattr(averaging, "BUCKET_BYTES", 4096)
    gradient = np.ones(N, np.float32)
    reducer = Reducer(own, "dense:values=float64")
    out = np.empty_like(gradient)
    assert reducer.reduce(gradient, out=out) is out
    np.testing.assert_array_equal(out, 1)
    np.testing.assert_array_equal(gradient, 1)
    assert sum(started) == N
    assert started == [1024, 1024, 1024, 1024, 907]
    assert set(reducer.stats.seconds) >= {"select", "agree", "exchange"}
    assert max(allocated, default=0) < N  # the mean is decoded into out


def test_what_needs_no_pass_of_its_own_goes_in_one_call(own, started, allocated, monkeypatch):
    """Neither copied nor rounded, divided as it becomes final: there is nothing to do meanwhile."""
    monkeypatch.setattr(averaging, "BUCKET_BYTES", 4096)
    gradient = np.full(N, own.rank + 1, np.float32)
    reducer, out = Reducer(own, "dense", algorithm="ring"), np.empty_like(gradient)
    reducer.reduce(gradient, out=out)
    np.testing.assert_array_equal(out, np.float32(sum(range(own.size + 1))) * np.float32(1 / own.size))
    np.testing.assert_array_equal(gradient, own.rank + 1)
    assert not started and not any(allocated)


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_nothing_leaves_in_a_step_that_does_not_count(own, started, policy, monkeypatch):
    monkeypatch.setattr(averaging, "BUCKET_BYTES", 4096)
    reducer = Reducer(own, "dense:values=float64", nonfinite=policy)
    gradient = np.ones(N, np.float32)
    reducer.reduce(gradient)
    before = len(started)
    assert_nan_is_refused(reducer, N)
    assert len(started) == before
    assert not reducer._laid_out.ctx.in_flight
    np.testing.assert_array_equal(reducer.reduce(gradient), 1)


def test_an_error_in_flight_is_raised_by_the_step(own, monkeypatch):
    """Also that of a bucket in the middle; the buckets started before and after it do not disturb the next step."""
    if not THREADS or own.size == 1:
        return
    monkeypatch.setattr(averaging, "BUCKET_BYTES", 4096)
    reducer = Reducer(own, "dense:values=float64")
    reducer.reduce(np.ones(N, np.float32))
    helper, calls = own._in_flight.comm, []
    run = helper.allreduce_in_place

    def failing(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise MPI.Exception(MPI.ERR_OTHER)
        run(*arguments)

    monkeypatch.setattr(helper, "allreduce_in_place", failing)
    with pytest.raises(MPI.Exception):
        reducer.reduce(np.ones(N, np.float32))
    own.Iallreduce(MPI.IN_PLACE, np.ones(1, np.float32)).Wait()  # the thread is through with the others
    assert len(calls) == 5


def test_without_a_thread_it_is_one_call(world, monkeypatch, seed):
    monkeypatch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_SERIALIZED)
    comm = Comm(world)
    vectors = drawn(comm, seed)
    means, _ = reduced(comm, "dense", 4096, monkeypatch, vectors)
    whole, _ = reduced(comm, "dense", WHOLE, monkeypatch, vectors)
    np.testing.assert_array_equal(means[2]["w"], whole[2]["w"])
    assert not comm.flies
    comm.Free()


def test_bytes_of_mpis_own_call_in_flight_are_counted(world, monkeypatch):
    monkeypatch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_SERIALIZED)
    comm = Comm(world)
    x = np.ones(1000, np.float32)
    comm.start_allreduce(x).Wait()
    np.testing.assert_array_equal(x, comm.size)
    assert comm.traffic.modelled == 2 * (comm.size - 1) * x.nbytes // comm.size
    comm.Free()


def test_a_state_of_other_pieces_is_refused_before_anything_is_in_flight(own, started, monkeypatch, seed):
    """An all-reduce in flight after the step's end would read and write freed memory."""
    monkeypatch.setattr(run_step, "IN_FLIGHT_BYTES", 1)
    grads = dict(zip("wb", drawn(own, seed)[0], strict=True))
    first, second = (Reducer(own, "onebit:dense=1d") for _ in range(2))
    first.reduce(grads)
    assert started
    started.clear()
    state = first.state_dict()
    second.load_state_dict({**state, "exchange/start": state["exchange/start"] + 1})
    with pytest.raises(InvalidArgument, match="must be of the piece"):
        second.reduce(grads)
    assert not started
