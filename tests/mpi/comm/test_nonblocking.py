"""``Iallreduce``: several in flight, with a helper thread and without."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI
from progress import until

from mpicomp import Comm, Reducer
from mpicomp.allreduce.native import least_bytes
from mpicomp.errors import InvalidArgument, NonFiniteGradient
from mpicomp.reducer import run_step
from mpicomp.schemes.codecs import CODECS

THREADS = MPI.Query_thread() == MPI.THREAD_MULTIPLE


@pytest.fixture(params=["thread", "no thread"])
def own(request, world, monkeypatch):
    if request.param == "no thread":
        monkeypatch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_SERIALIZED)
    elif not THREADS:
        pytest.skip("this MPI was started without MPI_THREAD_MULTIPLE")
    comm = Comm(world)
    yield comm
    comm.Free()


def test_many_in_flight(own):
    total = sum(range(own.size))
    for dtype in ("float32", "float64", "int32", "float16"):
        sizes = (1, 300_000, 17, 5000, 0, 70_000)
        sent = [np.full(n, own.rank + i, dtype) for i, n in enumerate(sizes)]
        got = [np.empty_like(x) for x in sent]
        started = [own.Iallreduce(x, y) for x, y in zip(sent, got, strict=True)]
        for i, request in reversed(list(enumerate(started))):
            assert request.Wait() is True
            np.testing.assert_array_equal(got[i], total + i * own.size)
            assert request.Test() is True
            assert request.test() == (True, None)
            assert request.wait() is None


@pytest.mark.parametrize("algorithm", ["native", "ring", "halving_doubling", "direct", "node_shared"])
def test_beside_blocking_calls(own, algorithm):
    x = np.full(50_000, own.rank, np.float32)
    y, z = np.empty_like(x), x.copy()
    request = own.Iallreduce(x, y, MPI.MAX, algorithm=algorithm)
    own.Allreduce(MPI.IN_PLACE, z, algorithm=algorithm)
    own.Barrier()
    request.Wait()
    np.testing.assert_array_equal(y, own.size - 1)
    np.testing.assert_array_equal(z, sum(range(own.size)))


def test_a_factor_in_flight(own):
    x = np.full(50_000, own.rank + 1, np.float32)
    request = own.start_allreduce(x, factor=0.1)
    request.Wait()
    assert request.Test() is True  # and does not multiply again
    np.testing.assert_array_equal(x, np.float32(sum(range(own.size + 1))) * np.float32(0.1))


def test_other_buffers_and_operations(own):
    x = np.full(9, own.rank + 1, np.complex128)
    y = np.empty_like(x)
    own.Iallreduce([x, MPI.DOUBLE_COMPLEX], [y, MPI.DOUBLE_COMPLEX]).Wait()
    np.testing.assert_array_equal(y, sum(range(own.size + 1)))
    z = np.array([1 << own.rank])
    own.Iallreduce(MPI.IN_PLACE, z, MPI.BOR).Wait()
    assert z[0] == (1 << own.size) - 1


def test_a_message_is_the_one_at_the_call(own):
    """The caller may fill its list anew for the next call, or empty it."""
    xs = [np.full(100_000, i + 1.0) for i in range(4)]
    message, requests = [None, xs[0].size, MPI.DOUBLE], []
    for x in xs:
        message[0] = x
        requests.append(own.Iallreduce(MPI.IN_PLACE, message))
    message.clear()
    for i, request in enumerate(requests):
        request.Wait()
        np.testing.assert_array_equal(xs[i], (i + 1) * own.size)


def test_a_datatype_may_be_freed_in_flight(own):
    op = MPI.Op.Create(
        lambda a, b, _: np.add(np.frombuffer(a, "d"), np.frombuffer(b, "d"), out=np.frombuffer(b, "d")), commute=True
    )
    pair = MPI.DOUBLE.Create_contiguous(2).Commit()
    x, y = np.arange(6.0), np.empty(6)
    request = own.Iallreduce([x, 3, pair], [y, 3, pair], op)
    pair.Free()
    request.Wait()
    op.Free()
    np.testing.assert_array_equal(y, x * own.size)


def test_test_gets_there(own):
    x = np.ones(100_000)
    request = own.Iallreduce(MPI.IN_PLACE, x)
    until(request.Test)
    np.testing.assert_array_equal(x, own.size)


def test_errors_come_with_the_result(own):
    with pytest.raises(InvalidArgument, match="unknown algorithm 'rnig'"):
        own.Iallreduce(MPI.IN_PLACE, np.ones(3), algorithm="rnig").Wait()
    x = np.ones(3)
    own.Iallreduce(MPI.IN_PLACE, x).Wait()
    np.testing.assert_array_equal(x, own.size)


def test_traffic_is_counted(own):
    own.Iallreduce(MPI.IN_PLACE, np.ones(3)).Wait()
    before = own.traffic
    own.Iallreduce(MPI.IN_PLACE, np.ones(1000, np.float16), algorithm="direct").Wait()
    assert ((own.traffic - before).bytes_sent > 0) == (own.size > 1)


def test_free_waits_for_what_was_started(world):
    if not THREADS:
        pytest.skip("needs a helper thread")
    own = Comm(world)
    x = np.ones(500_000, np.float32)
    own.Iallreduce(MPI.IN_PLACE, x)
    own.Free()
    np.testing.assert_array_equal(x, world.size)


def test_free_waits_for_requests_that_nobody_has(own, world):
    """MPI's own requests, too, if no helper thread waits for them."""
    comm = Comm(own)
    arrays = [np.ones(200_000, np.float32) for _ in range(3)]
    for x in arrays:
        comm.Iallreduce(MPI.IN_PLACE, x)
    comm.Free()
    for x in arrays:
        np.testing.assert_array_equal(x, world.size)


def test_a_request_is_waited_for_after_free(own, world):
    comm, x = Comm(own), np.ones(1000, np.float32)
    scaled, plain = comm.start_allreduce(x, factor=0.5), comm.Iallreduce(np.ones(10), y := np.zeros(10))
    comm.Free()
    scaled.Wait()
    assert plain.Test()
    np.testing.assert_array_equal(x, world.size / 2)
    np.testing.assert_array_equal(y, world.size)


def test_traffic_may_be_read_beside_the_helper_thread(own, monkeypatch):
    """Reading changes nothing: a call of the thread that is counted during it is not lost."""
    link, nbytes = own._in_flight.comm._engine.link, 12 * own.size
    counted, read = [], link.traffic

    def beside(modelled):
        if not counted:
            counted.append(nbytes)
            link.count_native(nbytes)
        return read(modelled)

    before = own.traffic
    link.count_native(nbytes)
    monkeypatch.setattr(link, "traffic", beside)
    own.traffic  # noqa: B018
    assert counted
    assert (own.traffic - before).modelled == 2 * least_bytes(nbytes, own.size)


def test_the_recorder_counts_a_call_alone(own):
    """Not what is in flight beside it."""
    events = []
    recorder = SimpleNamespace(
        event=lambda *place, **facts: events.append(facts), now=int, doing=None, region=lambda name: nullcontext()
    )
    y = np.ones(1000)
    own.Iallreduce(MPI.IN_PLACE, y).Wait()
    own.recorder = recorder
    for _ in range(20):
        request = own.Iallreduce(MPI.IN_PLACE, y)
        own.Allreduce(MPI.IN_PLACE, np.ones(100))
        request.Wait()
    assert {one["nbytes_sent"] for one in events} == {least_bytes(800, own.size)}


@pytest.mark.parametrize("text", ["topk:k=5,dense=1d", "scalecom:chunk=4,dense=1d", "dgc:k=5,dense=1d"])
def test_the_reducer_keeps_dense_arrays_in_flight(world, text, monkeypatch):
    """Long arrays that go uncompressed travel beside the compressed ones; nothing else changes."""
    comm = Comm(world)
    rng = np.random.default_rng(comm.rank)
    grads = {"w": rng.integers(-8, 8, (40, 50)).astype(np.float32), "b": rng.integers(-8, 8, 5000).astype(np.float32)}
    results, sent, used = [], [], []
    start = comm.start_allreduce
    monkeypatch.setattr(comm, "start_allreduce", lambda *args, **named: used.append(1) or start(*args, **named))
    for least in (0, 1 << 30):
        monkeypatch.setattr(run_step, "IN_FLIGHT_BYTES", least)
        reducer = Reducer(comm, text, algorithm="ring")
        results.append([reducer.reduce(grads) for _ in range(3)])
        sent.append(reducer.stats.bytes_sent)
    assert len(used) == 3
    for early, late in zip(*results, strict=True):
        for name in grads:
            np.testing.assert_array_equal(early[name], late[name])
    np.testing.assert_array_equal(results[0][0]["b"], world.allreduce(grads["b"]) * np.float32(1 / comm.size))
    if THREADS:  # MPI's own call is counted by formula
        assert sent[0] == sent[1]
    comm.Free()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("least", [0, 1 << 30], ids=["in flight", "at the end"])
def test_what_goes_dense_is_read_where_it_is(own, monkeypatch, least, workers):
    """One worker's vector is read in place and not changed; those of several are added up first."""
    read, start, plain = [], own.start_allreduce, own.allreduce_from
    monkeypatch.setattr(own, "start_allreduce", lambda *args: read.append(args[4]) or start(*args))
    monkeypatch.setattr(own, "allreduce_from", lambda *args: read.append(args[0]) or plain(*args))
    monkeypatch.setattr(run_step, "IN_FLIGHT_BYTES", least)
    rows = (workers,) if workers > 1 else ()
    grads = {"b": np.arange(1000 * workers, dtype=np.float32).reshape(*rows, 1000) % 17 + own.rank,
             "w": np.ones((*rows, 40, 50), np.float32)}
    before = grads["b"].copy()
    reducer = Reducer(own, "topk:k=5,dense=1d", workers=workers)
    mean = reducer.reduce([grads["w"], grads["b"]])[1]
    np.testing.assert_array_equal(grads["b"], before)
    np.testing.assert_allclose(mean, np.reshape(own.allgather(before), (-1, 1000)).mean(0), rtol=1e-6)
    found = [one for one in read if one is not None]
    assert len(found) == (workers == 1) and len(read) <= 1
    kept = mean.copy()
    reducer.reduce([grads["w"], grads["b"] + 1])
    np.testing.assert_array_equal(mean, kept)  # though the next step's is made in the same memory


@pytest.mark.parametrize("text", ["topk:k=5,dense=1d", "scalecom:chunk=4,dense=1d", "gtopk:k=5,dense=1d"])
def test_an_overflow_waits_for_dense_arrays_in_flight(own, text, monkeypatch):
    """Else MPI would write into memory that is free, and the next step would count what this one sent."""
    waiting, start, wait_for = [], own.start_allreduce, own.wait_for

    def started(*args, **named):
        waiting.append(start(*args, **named))
        return waiting[-1]

    def waited(request):
        wait_for(request)
        waiting.remove(request)

    def gradients(largest):
        w = np.arange(2000, dtype=np.float32).reshape(40, 50)
        w[0, 0] = largest if own.rank == 0 else 1  # the first leader is rank 0
        return {"w": w, "b": np.full(300_000, own.rank, np.float32)}

    fresh, reducer = (Reducer(own, f"{text},values=float16", algorithm="ring") for _ in range(2))
    expected = fresh.reduce(gradients(3000))
    monkeypatch.setattr(own, "start_allreduce", started)
    monkeypatch.setattr(own, "wait_for", waited)
    for _ in range(3):
        with pytest.raises(NonFiniteGradient) as caught:
            reducer.reduce(gradients(1e5))
        assert not waiting
        assert set(own.allgather(str(caught.value))) == {"values=float16 overflowed in step 0: use values=same"}
    found = reducer.reduce(gradients(3000))
    assert not waiting
    for name, mean in expected.items():
        np.testing.assert_array_equal(found[name], mean)
    assert reducer.stats.bytes_sent == fresh.stats.bytes_sent


@pytest.mark.parametrize("text", ["topk:k=5,dense=1d", "scalecom:chunk=4,dense=1d", "dense:values=float64"])
def test_an_error_in_mid_step_waits_for_what_is_in_flight(own, text, monkeypatch):
    """Any error: a codec that refuses its argument, for example."""
    monkeypatch.setattr("mpicomp.schemes.averaging.BUCKET_BYTES", 1 << 18)
    waiting, start, wait_for = [], own.start_allreduce, own.wait_for

    def started(*args, **named):
        waiting.append(start(*args, **named))
        return waiting[-1]

    def waited(request):
        wait_for(request)
        waiting.remove(request)

    def refused(*args):
        raise InvalidArgument("more than this codec has room for")

    grads = {"w": np.arange(2000, dtype=np.float32).reshape(40, 50), "b": np.full(300_000, own.rank, np.float32)}
    fresh, reducer = (Reducer(own, text, algorithm="ring") for _ in range(2))
    expected = fresh.reduce(grads)
    with monkeypatch.context() as patch:
        patch.setattr(own, "start_allreduce", started)
        patch.setattr(own, "wait_for", waited)
        patch.setattr(CODECS["float"], "decode", refused)
        patch.setattr(CODECS["float"], "decode_into", refused)
        with pytest.raises(InvalidArgument, match="more than this codec"):
            reducer.reduce(grads)
        assert not waiting
    found = reducer.reduce(grads)
    for name, mean in expected.items():
        np.testing.assert_array_equal(found[name], mean)
    assert reducer.stats.bytes_sent == fresh.stats.bytes_sent
