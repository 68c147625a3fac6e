"""The schedule in shared memory: exact bits for all it claims, arrays of ``Comm.empty``, memory that goes away."""

from __future__ import annotations

import functools
import gc
import os
import time

import numpy as np
import pytest
from mpi4py import MPI

from mpicomp import Comm
from mpicomp.allreduce import node_shared
from mpicomp.comm import node_memory
from mpicomp.errors import InvalidArgument, MpicompError, RankLeft
from mpicomp.ops import oracle

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
REALS = ("float32", "float64", "float16")
ARITHMETIC = {"SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum}
LOGICAL = {"LAND": np.logical_and, "LOR": np.logical_or, "LXOR": np.logical_xor}
BITWISE = {"BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}
SIZES = (1, 3, 17, 1023, 40_003)


def everyone(n, dtype, size, low=0, high=3):
    """Every rank's vector, the same list on every rank."""
    rngs = (np.random.default_rng([n, rank]) for rank in range(size))
    return [rng.integers(low, high, n, endpoint=True).astype(dtype) for rng in rngs]


def reduced(comm, vectors, op, in_place=False):
    mine = vectors[comm.rank].copy()
    if in_place:
        comm.Allreduce(MPI.IN_PLACE, mine, op, "node_shared")
        return mine
    result = np.full_like(mine, 77)
    comm.Allreduce(mine, result, op, "node_shared")
    np.testing.assert_array_equal(mine, vectors[comm.rank])
    return result


@pytest.fixture(params=[node_memory.SLOT_BYTES, 1 << 10], ids=["", "many-pieces"])
def small(request, comm, monkeypatch):
    """A communicator with the usual slots, or with slots so small that every call turns them over many times."""
    if request.param == node_memory.SLOT_BYTES:
        yield comm
        return
    monkeypatch.setattr(node_memory, "SLOT_BYTES", request.param)
    own = Comm(comm)
    yield own
    own.Free()


@pytest.mark.parametrize("op", [*ARITHMETIC, *LOGICAL, *BITWISE])
def test_every_op_and_dtype(small, op):
    functions = {**ARITHMETIC, **LOGICAL, **BITWISE}
    for dtype in (*REALS, *INTEGERS) if op in ARITHMETIC else INTEGERS:
        for n in SIZES:
            vectors = everyone(n, dtype, small.size, high=2 if op == "PROD" else 3)
            want = functools.reduce(functions[op], vectors).astype(dtype)
            got = reduced(small, vectors, getattr(MPI, op), in_place=n % 2)
            np.testing.assert_array_equal(got, want, f"{op} {dtype} {n}")


def test_lengths_around_what_the_slots_hold(world, monkeypatch, seed):
    """One piece in one slot, one piece over all slots, many pieces: each may follow each, and ranks come late."""
    monkeypatch.setattr(node_memory, "SLOT_BYTES", 1 << 10)
    own, rng, late = Comm(world), np.random.default_rng(seed), np.random.default_rng([seed, world.rank])
    for _ in range(30):
        n = int(rng.choice([1, 250, 256, 257, 900, 1000, 1024, 1025, 3000]))  # float32: one slot holds 256, all 1024
        vectors = everyone(n, "float32", own.size)
        if late.random() < 0.2:
            time.sleep(2e-3 * late.random())
        np.testing.assert_array_equal(reduced(own, vectors, MPI.SUM, in_place=n % 2), functools.reduce(np.add, vectors))
    own.Free()


@pytest.mark.parametrize("result", ["kept", "streamed"])
@pytest.mark.parametrize("place", ["private", "shared"])
def test_ranks_write_past_their_caches_or_not(world, monkeypatch, place, result):
    """Each rank writes in either way; in the 9th piece and the 73rd it compares them, half of the piece in each."""
    monkeypatch.setattr(node_memory, "SLOT_BYTES", 1 << 15)
    monkeypatch.setattr(node_shared, "STREAM_BYTES", 1 if result == "streamed" else 1 << 40)
    own, n = Comm(world), 1 << 15  # 128 KiB, the shortest vector that is compared
    send, receive = (own.empty(n, np.float32) if place == "shared" else np.empty(n, np.float32) for _ in range(2))
    for turn in range(80):
        if own.size > 1 and turn:
            own._engine.link.node._window.past_caches = bool((turn + own.rank) % 3)
        vectors = everyone(n, "float32", own.size, high=turn)
        send[:] = vectors[own.rank]
        own.Allreduce(send, receive, algorithm="node_shared")
        np.testing.assert_array_equal(receive, functools.reduce(np.add, vectors))
    own.Free()


def test_integers_wrap_around(comm):
    for dtype in INTEGERS:
        vectors = [np.full(99, np.iinfo(dtype).max, dtype)] * comm.size
        want = functools.reduce(np.add, vectors)
        np.testing.assert_array_equal(reduced(comm, vectors, MPI.SUM), want)


def test_nan_wins(comm):
    vectors = everyone(40, "float32", comm.size)
    vectors[comm.size // 2][7] = np.nan
    for op, function in ARITHMETIC.items():
        np.testing.assert_array_equal(reduced(comm, vectors, getattr(MPI, op)), functools.reduce(function, vectors))


def test_bfloat16(comm):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    vectors = [np.full(301, 256 if rank == 0 else 1, ml_dtypes.bfloat16) for rank in range(comm.size)]
    wide = np.float32(255 + comm.size)  # 256 + 1 is 256 in bfloat16
    assert reduced(comm, vectors, MPI.SUM)[300] == wide.astype(ml_dtypes.bfloat16)


def test_the_sum_is_taken_in_rank_order(small):
    for n in (5, 2049, 100_001):
        vectors = [np.random.default_rng([n, rank]).standard_normal(n, np.float32) for rank in range(small.size)]
        want = vectors[0].copy()
        for vector in vectors[1:]:
            oracle.add(want, vector)
        for in_place in (False, True):
            np.testing.assert_array_equal(reduced(small, vectors, MPI.SUM, in_place), want)


# ---- arrays in shared memory

def test_empty_makes_arrays_of_their_own(comm):
    for shape, dtype in (((3, 5), "float64"), (7, "int16"), ((), "float32"), (0, "float32")):
        a, b = comm.empty(shape, dtype), comm.empty(shape, dtype)
        assert a.dtype == np.dtype(dtype)
        assert a.shape == np.empty(shape).shape
        a[...], b[...] = comm.rank, 77
        comm.Barrier()
        assert np.all(a == comm.rank)
        assert np.all(b == 77)


def test_empty_refuses_on_every_rank(comm):
    """Also where only one rank asks for what cannot be."""
    bad = ((-1, "float32"), ((2, -3), "int8"), (2.5, "float32"), (3, object), (3, "no type"), ("x", "f4"))
    for shape, dtype in bad:
        mine = (shape, dtype) if comm.rank == comm.size - 1 else (3, "float32")
        with pytest.raises(InvalidArgument, match=r"expected (a shape|lengths)"):
            comm.empty(*mine)
    assert comm.empty(3).shape == (3,)


def test_empty_without_enough_memory(comm, monkeypatch):
    def full(nbytes):
        raise OSError(28, "No space left on device")

    comm.empty(1)  # the slots have their memory
    monkeypatch.setattr(node_memory, "create", full)
    with pytest.raises(MpicompError, match="no shared memory for 4 bytes per rank"):
        comm.empty(1)


@pytest.mark.parametrize("who", ["all", "even", "none"])
@pytest.mark.parametrize("buffers", ["send", "receive", "both", "in place"])
def test_any_mixture_of_shared_and_private_arrays(small, who, buffers):
    here = who == "all" or (who == "even" and small.rank % 2 == 0)
    for n in (2, 1001, 70_001):
        vectors = everyone(n, "float32", small.size)
        shared = small.empty((2, n))
        send, receive = np.empty((2, n), np.float32)
        if here and buffers in ("send", "both"):
            send = shared[0]
        if here and buffers != "send":
            receive = shared[1]
        for _ in range(3):
            receive[:] = np.nan
            send[:] = vectors[small.rank]
            if buffers == "in place":
                receive[:] = send
                small.Allreduce(MPI.IN_PLACE, receive, algorithm="node_shared")
            else:
                small.Allreduce(send, receive, algorithm="node_shared")
                np.testing.assert_array_equal(send, vectors[small.rank])
            np.testing.assert_array_equal(receive, sum(vectors))


def test_shared_arrays_serve_every_algorithm(comm):
    a = comm.empty(1000)
    for algorithm in ("native", "ring", "halving_doubling", "direct", "auto"):
        a[:] = comm.rank
        comm.Allreduce(MPI.IN_PLACE, a, algorithm=algorithm)
        np.testing.assert_array_equal(a, sum(range(comm.size)))


def test_memory_is_given_back(world):
    own = Comm(world)
    for _ in range(5):
        own.empty(100_000)
        gc.collect()
    assert own.size == 1 or len(own._engine.link.node._segments) <= 2 + 1  # slots, the last array; one not yet noticed
    kept = own.empty(1000, "int32")
    kept[:] = own.rank
    own.Allreduce(MPI.IN_PLACE, kept, algorithm="node_shared")
    own.Free()
    np.testing.assert_array_equal(kept, sum(range(world.size)))  # an array outlives its communicator
    kept[:] = 3


def test_no_file_has_a_name(comm):
    comm.Allreduce(np.ones(10), np.empty(10), algorithm="node_shared")
    comm.empty(10)
    comm.Barrier()
    mine = f"mpicomp-{os.getpid()}-"
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(mine)]


def test_without_shared_memory_another_schedule_runs(world, monkeypatch):
    def full(nbytes):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node_memory, "create", full)
    own = Comm(world)
    x = np.full(100, own.rank)
    own.Allreduce(MPI.IN_PLACE, x, algorithm="node_shared")
    np.testing.assert_array_equal(x, sum(range(own.size)))
    assert own.empty(5).shape == (5,)
    if own.size > 1:
        assert "No space left on device" in own._engine.link.node.problem
    own.Free()


def test_a_failed_rank_is_noticed(world, monkeypatch):
    """A rank leaves in the middle of a call: the others raise, they do not wait for ever."""
    monkeypatch.setenv("MPICOMP_CHECK", "0")
    own = Comm(world)
    if own.size == 1:
        return
    own.empty(1)
    own.Barrier()  # no rank hears of the failure in the call above
    reduce = functools.partial(own.Allreduce, np.ones(9), np.empty(9), algorithm="node_shared")
    if own.rank == 0:
        own._engine.link.node.progress = interrupt
        with pytest.raises(KeyboardInterrupt):
            reduce()
        own.Send(np.ones(1), own.size - 1)
    else:
        if own.rank == own.size - 1:
            own.Recv(np.empty(1), 0)  # rank 0 is waiting for this one when it leaves
        with pytest.raises(RankLeft, match="rank 0 left"):
            reduce()
    with pytest.raises(RankLeft, match="make a new Comm"):
        reduce()
    own.Free()


def interrupt():
    raise KeyboardInterrupt
