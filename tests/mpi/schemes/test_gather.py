"""The gather exchange: how indices are written, what that costs, and when it goes over to a dense all-reduce."""

import numpy as np
import pytest
from mpi4py import MPI

import mpicomp
from mpicomp.errors import CorruptMessage
from mpicomp.schemes.wire import message_format

HEADER = 32  # bytes per worker


def gradient(seed, rank, n, dtype=np.float32):
    return np.random.default_rng([seed, rank]).integers(-99, 100, n).astype(dtype)


def bytes_of_all(comm, reducer):
    """Sum of the bytes that all ranks sent in the last step."""
    sent = np.array([reducer.stats.bytes_sent])
    comm.Allreduce(MPI.IN_PLACE, sent)
    return int(sent[0])


@pytest.mark.parametrize("n", [1, 100, 5000])
@pytest.mark.parametrize("form", ["auto", "plain", "gaps", "bitmap"])
@pytest.mark.parametrize("density", [0.001, 0.3, 1])
def test_every_form_of_indices_gives_the_same_mean(comm, seed, form, density, n):
    grad = gradient(seed, comm.rank, n)
    mean = mpicomp.Reducer(comm, f"topk:density={density},indices={form},switch=never").reduce(grad)
    k = max(1, round(density * n))
    total = np.zeros(n, np.float32)
    for rank in range(comm.size):
        other = gradient(seed, rank, n)
        chosen = np.argsort(-np.abs(other), kind="stable")[:k]
        total[chosen] += other[chosen]
    np.testing.assert_array_equal(mean, total * np.float32(1 / comm.size))


@pytest.mark.parametrize(("form", "n", "k", "index_bytes"), [
    ("plain", 8000, 80, 320), ("bitmap", 8000, 80, 1000), ("auto", 8000, 4000, 0), ("auto", 65536, 65536, 0),
])
def test_bytes_equal_the_formula(comm, form, n, k, index_bytes):
    """A rank forwards (p - 1) messages by any route, with 8 bytes for the length of each, and has one agreement."""
    reducer = mpicomp.Reducer(comm, f"topk:k={k},indices={form},switch=never")
    grad = np.zeros(n, np.float32)
    grad[:k] = np.arange(k, 0, -1)
    # ``auto`` sees a run of neighbours: gaps of no bits.
    for _ in range(2):
        reducer.reduce(grad.copy())
    message = HEADER + 4 * k + index_bytes
    expected = comm.size * (comm.size - 1) * message
    assert expected <= bytes_of_all(comm, reducer) <= expected + 64 * comm.size * comm.size
    assert reducer.stats.payload_bits == 8 * (message - HEADER)


def test_gaps_are_as_wide_as_the_largest(comm):
    n, every = 100_000, 100
    grad = np.zeros(n, np.float32)
    grad[every - 1 :: every] = 1
    reducer = mpicomp.Reducer(comm, "topk:density=0.01")
    reducer.reduce(grad)
    assert reducer.stats.payload_bits == 1000 * 32 + 1000 * 7  # 99 needs 7 bits


def test_indices_inside_chunks_take_a_byte_at_most(comm, seed):
    n, chunk = 64 * 200, 64
    grad = np.abs(np.random.default_rng([seed, comm.rank]).standard_normal(n)).astype(np.float32)  # none cancel
    reducer = mpicomp.Reducer(comm, f"scalecom:chunk={chunk},exchange=gather")
    mean = reducer.reduce(grad)
    assert reducer.stats.payload_bits <= 200 * (32 + 8)
    own = np.abs(grad.reshape(-1, chunk)).argmax(axis=1) + np.arange(200) * chunk
    assert np.all(mean[own] != 0)


BENT = {"plain": lambda written: written.view(np.int32)[::-1].copy().view(np.uint8),
        "gaps": lambda written: written | 0xFF,
        "bitmap": np.zeros_like}  # fmt: skip


@pytest.mark.parametrize("form", BENT)
def test_a_damaged_list_is_refused_by_all_who_get_it(world, monkeypatch, form):
    """With the same text and without a hang. Its sender, which reads no message of its own, learns it at their end."""
    if world.size == 1:
        pytest.skip("no other rank gets it")
    pack, damages = message_format.pack, world.rank == world.size - 1

    def bent(parts, ops):
        return pack([one._replace(indices=BENT[form](one.indices)) for one in parts], ops)

    if damages:
        monkeypatch.setattr(message_format, "pack", bent)
    reducer, said = mpicomp.Reducer(mpicomp.Comm(world), f"topk:k=20,indices={form},switch=never"), None
    try:
        reducer.reduce(np.random.default_rng(world.rank).standard_normal(999).astype(np.float32))
    except CorruptMessage as error:
        said = str(error)
    *others, sender = world.allgather(said)
    assert sender is None
    assert set(others) == {others[0]} and "another rank's message is damaged" in others[0], others


def test_a_full_union_goes_dense(comm, seed):
    n = 4096
    grad = gradient(seed, comm.rank, n)
    everyone = sum(gradient(seed, rank, n) for rank in range(comm.size))
    reducer = mpicomp.Reducer(comm, "topk:density=1,indices=plain")
    indices, values, _ = reducer.reduce_sparse(grad)
    np.testing.assert_array_equal(values, everyone * np.float32(1 / comm.size))
    switches = comm.size * (HEADER + 8 * n) > 2 * 4 * n
    assert (indices is None) == switches
    if switches:
        assert bytes_of_all(comm, reducer) <= 2 * (comm.size - 1) * 4 * n + 64 * comm.size * comm.size
    sparse = mpicomp.Reducer(comm, "topk:density=1,indices=plain,switch=never").reduce(grad)
    np.testing.assert_array_equal(sparse, values)


def test_indices_above_two_to_the_24th_stay_exact(comm):
    """float32 cannot hold them: published codes that keep indices in it hit the wrong parameters."""
    if comm.size > 3:
        pytest.skip("the vector is long; three ranks show it")
    n = 2**24 + 3
    for form in ("plain", "gaps", "bitmap"):
        grad = np.zeros(n, np.float32)
        grad[[2**24 - 1, 2**24 + 1, n - 1]] = 1 + comm.rank, 2, 3
        reducer = mpicomp.Reducer(comm, f"topk:k=3,indices={form}")
        indices, values, _ = reducer.reduce_sparse(grad)
        np.testing.assert_array_equal(indices, [2**24 - 1, 2**24 + 1, n - 1])
        assert indices.dtype == np.int32
        np.testing.assert_allclose(values, [(1 + comm.size) / 2, 2, 3], rtol=1e-6)


@pytest.mark.parametrize("scheme", ["topk:k=40", "scalecom:chunk=9", "dense"])
@pytest.mark.parametrize("values", ["float16", "bfloat16"])
def test_half_precision_values(comm, seed, scheme, values):
    """Small integers are exact in both; the wire is half as long."""
    n = 360 * comm.size  # so that lists stay shorter than the vector
    grad = np.random.default_rng([seed, comm.rank]).integers(-8, 9, n).astype(np.float32)
    exact = mpicomp.Reducer(comm, scheme)
    half = mpicomp.Reducer(comm, str(mpicomp.Scheme.parse(scheme).replace(values=values)))
    np.testing.assert_allclose(half.reduce(grad), exact.reduce(grad), rtol=2**-7)
    counts = {"topk:k=40": 40, "scalecom:chunk=9": n // 9, "dense": n}
    assert round(exact.stats.payload_bits - half.stats.payload_bits) == 16 * counts[scheme]
