"""The dense schedules against exact sums: small integers stored as floats give the same bits in any order."""

from __future__ import annotations

import os
from zlib import crc32

import costs
import numpy as np
import pytest
from mpi4py import MPI

from mpicomp import allreduce
from mpicomp.allreduce import direct, halving_doubling, ring
from mpicomp.errors import BufferRefused, InvalidArgument

OPS = {"sum": (MPI.SUM, np.add), "prod": (MPI.PROD, np.multiply), "min": (MPI.MIN, np.minimum)}
OPS["max"] = (MPI.MAX, np.maximum)
OWN = ["ring", "halving_doubling", "direct", "node_shared"]
MPICH = MPI.get_vendor()[0] == "MPICH"


def inputs(n, dtype, size, seed=0):
    """Every rank's vector, the same list on every rank; of 64 ranks the sum fits and the product is exact, or wraps."""
    values = [1, 2] if np.dtype(dtype).kind == "u" else [-2, -1, 1, 2]
    return [np.random.default_rng([seed, rank, n]).choice(values, n).astype(dtype) for rank in range(size)]


def expected(vectors, op):
    return OPS[op][1].reduce(np.stack(vectors)).astype(vectors[0].dtype)


def run(comm, vectors, op, algorithm, in_place):
    mine = vectors[comm.rank].copy()
    if in_place:
        comm.Allreduce(MPI.IN_PLACE, mine, OPS[op][0], algorithm=algorithm)
        return mine
    result = np.full_like(mine, 77)
    comm.Allreduce(mine, result, OPS[op][0], algorithm)
    np.testing.assert_array_equal(mine, vectors[comm.rank])
    return result


def small_segments(monkeypatch, nbytes):
    """Cut vectors of a few hundred elements into as many segments as real ones have."""
    for module in (ring, halving_doubling, direct):
        monkeypatch.setattr(module, "SEGMENT_BYTES", nbytes)


@pytest.mark.parametrize("algorithm", allreduce.names())
def test_exact(comm, algorithm):
    case = 0
    for dtype in ("float32", "float64", "int32", "int64", "uint8"):
        for n in (0, 1, comm.size - 1, comm.size, comm.size + 1, 97, 4099):
            op = list(OPS)[case % 4]
            vectors = inputs(n, dtype, comm.size)
            got = run(comm, vectors, op, algorithm, in_place=case % 2)
            np.testing.assert_array_equal(got, expected(vectors, op), f"{algorithm} {op} {dtype} {n}")
            case += 1


@pytest.mark.parametrize("op", list(OPS))
def test_every_op(comm, op):
    for algorithm in OWN:
        for dtype in ("float32", "int16", "uint64"):
            vectors = inputs(1009, dtype, comm.size)
            for in_place in (True, False):
                np.testing.assert_array_equal(run(comm, vectors, op, algorithm, in_place), expected(vectors, op))


@pytest.mark.parametrize("segment", [4, 40, 256])
def test_many_segments(comm, monkeypatch, segment):
    small_segments(monkeypatch, segment)
    for algorithm in OWN:
        for n in (comm.size, 37, 211) if segment == 4 else (211, 1009):
            vectors = inputs(n, "float32", comm.size)
            for in_place in (True, False):
                got = run(comm, vectors, "sum", algorithm, in_place)
                np.testing.assert_array_equal(got, expected(vectors, "sum"), f"{algorithm} {n} {in_place}")


@pytest.mark.parametrize("algorithm", allreduce.names())
def test_large(comm, algorithm):
    vectors = inputs(1_500_007, "float32", comm.size)
    np.testing.assert_array_equal(run(comm, vectors, "sum", algorithm, in_place=False), expected(vectors, "sum"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("algorithm", allreduce.names())
def test_a_factor_multiplies_every_element_once(comm, monkeypatch, algorithm, dtype):
    """Also elements that a schedule forwards before all ranks have theirs; the input of the sum is not changed."""
    small_segments(monkeypatch, 40)
    factor = 1 / 3  # no power of two: two factors, or one in another precision, would give other bits
    for n in (0, 1, comm.size, 211, 1009):
        vectors = inputs(n, dtype, comm.size)
        want = expected(vectors, "sum") * np.dtype(dtype).type(factor)
        mine, result = vectors[comm.rank].copy(), np.full(n, 77, dtype)
        comm.allreduce_from(mine, result, algorithm, factor)
        np.testing.assert_array_equal(result, want, f"{n}")
        np.testing.assert_array_equal(mine, vectors[comm.rank])
        comm.allreduce_in_place(mine, algorithm, factor=factor)
        np.testing.assert_array_equal(mine, want, f"{n} in place")


def test_only_floats_in_full_precision_take_a_factor(comm):
    for x, kind in ((np.ones(3, np.int32), None), (np.ones(3, np.float16), None), (np.ones(3, np.uint16), "bfloat16")):
        with pytest.raises(InvalidArgument, match="only float32 and float64 take a factor"):
            comm.allreduce_in_place(x, kind=kind, factor=0.5)


def test_buffers_of_a_sum_that_do_not_belong_together(comm):
    x = np.ones(4, np.float32)
    for other, text in (
        (x[1:], "one length, got 3 and 4"), (x.astype(float), "got float64 and float32"), (x, "overlap"),
    ):  # fmt: skip
        with pytest.raises(BufferRefused, match=text):
            comm.allreduce_from(other, x)
    half, total = np.full(4, 1, np.float16), np.empty(4, np.float16)
    comm.allreduce_from(half, total)
    np.testing.assert_array_equal(total, comm.size)


@pytest.mark.parametrize("algorithm", OWN)
def test_same_bits_everywhere_and_always(comm, algorithm):
    x = np.random.default_rng(comm.rank).standard_normal(20011).astype(np.float32)
    hashes = set()
    for _ in range(3):
        y = np.empty_like(x)
        comm.Allreduce(x, y, algorithm=algorithm)
        hashes.add(crc32(y))
    assert len(hashes) == 1
    assert len(set(comm.allgather(hashes.pop()))) == 1
    exact = sum(np.random.default_rng(rank).standard_normal(20011).astype(np.float32).astype(float)
                for rank in range(comm.size))  # fmt: skip
    np.testing.assert_allclose(y, exact, atol=comm.size * 4e-7 * comm.size)


def half_sum(vectors):
    return np.sum([v.astype(np.float32) for v in vectors], axis=0, dtype=np.float32)


@pytest.mark.parametrize("algorithm", ["auto", "ring", "direct"])
def test_float16_is_summed_in_float32(comm, algorithm):
    for n in (0, 1, 5, comm.size, 3001):
        # 2048 + 1 is 2048 in float16: only a wide sum counts the ones.
        vectors = [np.full(n, 2048 if rank == 0 else 1, np.float16) for rank in range(comm.size)]
        got = run(comm, vectors, "sum", algorithm, in_place=n % 2)
        assert got.dtype == np.float16
        np.testing.assert_array_equal(got, half_sum(vectors).astype(np.float16))


def test_float16_other_ops_and_native(comm):
    vectors = inputs(501, "float16", comm.size)
    for op in OPS:
        np.testing.assert_array_equal(run(comm, vectors, op, "auto", True), expected(vectors, op))
    np.testing.assert_array_equal(run(comm, vectors, "sum", "native", True), expected(vectors, "sum"))


def test_bfloat16(comm):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    vectors = [np.full(301, 256 if rank == 0 else 1, ml_dtypes.bfloat16) for rank in range(comm.size)]
    for algorithm in ("auto", "native"):
        got = run(comm, vectors, "sum", algorithm, in_place=True)
        want = half_sum(vectors).astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


def test_counts_over_the_limit_go_in_chunks(world, monkeypatch):
    from mpicomp import Comm

    monkeypatch.setattr("mpicomp.comm.transport.MAX_COUNT", 100)
    comm = Comm(world)
    try:
        for algorithm in ("native", *OWN):
            for dtype in ("float32", "float16"):
                vectors = inputs(1013, dtype, comm.size)
                np.testing.assert_array_equal(run(comm, vectors, "sum", algorithm, False), expected(vectors, "sum"))
        x = np.arange(1013.0) + (comm.rank == 0)
        comm.broadcast(x, root=0)
        np.testing.assert_array_equal(x, np.arange(1013.0) + 1)
        flat, counts = comm.gather_to_all(np.full(517, comm.rank))
        assert counts == [517] * comm.size
        np.testing.assert_array_equal(flat, np.repeat(np.arange(comm.size), 517))
    finally:
        comm.Free()


@pytest.mark.parametrize("algorithm", ["native", *OWN])
def test_traffic_is_what_the_formula_says(comm, algorithm):
    for n in (1, 40, 10007):
        before = comm.traffic
        comm.Allreduce(MPI.IN_PLACE, np.ones(n, np.float32), algorithm=algorithm)
        used = comm.traffic - before
        sent, received = costs.allreduce_bytes(algorithm, n, 4, comm.size, comm.rank)
        assert (used.bytes_sent, used.bytes_received) == (sent, received)
        assert used.modelled == (sent if algorithm == "native" else 0)
        assert sent <= costs.ALLREDUCE[algorithm](n * 4, comm.size).nbytes + 8 * comm.size


def test_scratch_is_kept(comm):
    x = np.ones(30_000, np.float32)
    for algorithm in OWN:
        comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
    held = {key: id(array) for key, array in comm._engine.reduction.scratch.items()}
    for algorithm in OWN:
        comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
    assert held == {key: id(array) for key, array in comm._engine.reduction.scratch.items()}


def test_auto_can_be_set_by_the_environment(world, monkeypatch):
    from mpicomp import Comm

    monkeypatch.setenv("MPICOMP_ALGORITHM", "ring")
    comm = Comm(world)
    try:
        comm.Allreduce(MPI.IN_PLACE, np.ones(100, np.float32))
        assert comm.traffic.modelled == 0
        assert (comm.traffic.messages > 0) == (comm.size > 1)
    finally:
        comm.Free()


def test_unknown_algorithm_lists_the_choices(comm):
    said = r"unknown algorithm 'rnig' \(did you mean 'ring'\?\): choose one of auto, native, ring"
    with pytest.raises(ValueError, match=said):
        comm.Allreduce(MPI.IN_PLACE, np.ones(3), algorithm="rnig")


def test_short_arrays_take_the_fast_path(world, monkeypatch):
    """After the checked calls: the same results and the same refusals."""
    from mpicomp import Comm
    from mpicomp.errors import BufferRefused

    monkeypatch.setenv("MPICOMP_CHECK", "0")
    comm = Comm(world)
    try:
        for dtype in ("float32", "float16", "int32", "complex64"):
            vectors = inputs(33, dtype, comm.size)
            for in_place in (True, False):
                np.testing.assert_array_equal(run(comm, vectors, "sum", "auto", in_place), expected(vectors, "sum"))
        square = np.ones((3, 4), order="F")
        for send, receive in ((MPI.IN_PLACE, square), (square, np.ones((3, 4))), (np.ones(3), np.ones(4))):
            with pytest.raises(BufferRefused):
                comm.Allreduce(send, receive)
        assert os.environ["MPICOMP_CHECK"] == "0"
    finally:
        comm.Free()
