"""Quantised all-reduces: the bits of two hops written by the oracle, the documented error, refusals, bytes."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

import mpicomp
from mpicomp import allreduce
from mpicomp.allreduce import block_codes, two_hops
from mpicomp.errors import BufferRefused, Disagreement, InvalidArgument
from mpicomp.ops import oracle
from mpicomp.ops.block_codes import BLOCK, FORMATS, block_codes_nbytes, largest_error

DTYPES = ("float32", "float64", "float16", "bfloat16")
LENGTHS = (1, 257, 1500)  # below and above a block per rank

all_formats = pytest.mark.parametrize("format", FORMATS)


@pytest.fixture(params=["nodes", "reproducible"])
def comm(world, monkeypatch, request):
    """Every rank a node of its own; or one node, in the mode whose bits do not depend on nodes."""
    monkeypatch.setenv("MPICOMP_CHECK", "1")
    if request.param == "nodes":
        monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "1")
    own = mpicomp.Comm(world, reproducible=request.param == "reproducible")
    yield own
    own.Free()


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


def dtype_of(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)


def vectors_of(rng, n, size, dtype):
    """One vector per rank: noise, wide ranges, zeros, values near the largest, numbers that are not finite."""
    noise = rng.standard_normal((size, n))
    yield "noise", noise.astype(dtype)
    yield "wide", (noise * 10.0 ** rng.integers(-3, 3, (size, n))).astype(dtype)
    yield "zero", np.zeros((size, n), dtype)
    yield "one rank", np.where(np.arange(size)[:, None] == 0, noise, 0).astype(dtype)
    special = noise.copy()
    special[rng.integers(size), rng.integers(n)] = rng.choice([np.nan, np.inf, -np.inf])
    yield "not finite", special.astype(dtype)


def rounded(x, format):
    """``x`` as its codes are decoded."""
    codes, out = np.empty(block_codes_nbytes(x.size, format), np.uint8), np.empty_like(x)
    oracle.encode_blocks(x, format, codes)
    oracle.decode_blocks(codes, format, out)
    return out


def two_hops_by_oracle(comm, mine, format, factor):
    """Round each rank's vector, add in rank order, multiply, round the sum; one rank alone rounds nothing."""
    if comm.size == 1:
        return mine.copy()
    wide = mine if mine.dtype in (np.float32, np.float64) else mine.astype(np.float32)
    total = np.zeros_like(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        for vector in comm.allgather(rounded(wide, format)):
            total += vector
        return rounded(total * total.dtype.type(factor), format).astype(mine.dtype)


def reduced(comm, x, format, in_place=False, op=MPI.SUM):
    out = x.copy() if in_place else np.full_like(x, 77)
    comm.Allreduce(MPI.IN_PLACE if in_place else x, out, op, format)
    return out


def assert_bits(actual, expected):
    """Same values; zeros have a sign, and a NaN need only be one."""
    assert actual.dtype == expected.dtype
    actual, expected = (x.astype(np.float64) for x in (actual, expected))
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual[actual == 0]), np.signbit(expected[expected == 0]))


def same_on_all(comm, x):
    return len(set(comm.allgather(x.tobytes()))) == 1


def test_formats_are_those_of_the_codes():
    assert allreduce.LOSSY == FORMATS


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [MPI.SUM, mpicomp.AVG])
def test_empty_vectors(comm, dtype, op):
    for in_place in (False, True):
        assert reduced(comm, np.empty(0, dtype_of(dtype)), "int8", in_place, op).size == 0


@pytest.mark.parametrize("dtype", DTYPES)
@all_formats
def test_bits_are_those_of_two_hops(comm, rng, format, dtype):
    for n in (*LENGTHS, int(rng.integers(2, 3000))):
        for name, vectors in vectors_of(rng, n, comm.size, dtype_of(dtype)):
            print(name, n)
            mine = vectors[comm.rank].copy()
            for op, factor in ((MPI.SUM, 1), (mpicomp.AVG, 1 / comm.size))[: 2 if name == "noise" else 1]:
                got = reduced(comm, mine, format, op=op)
                assert_bits(got, two_hops_by_oracle(comm, mine, format, factor))
                assert got.tobytes() == reduced(comm, mine, format, in_place=True, op=op).tobytes()
                assert same_on_all(comm, got)
            assert mine.tobytes() == vectors[comm.rank].tobytes()


@pytest.mark.parametrize("dtype", DTYPES[:2])
@all_formats
def test_errors_are_as_documented(comm, rng, format, dtype):
    n = 2000
    vectors = (rng.standard_normal((comm.size, n)) * 10.0 ** rng.integers(-30, 30, (comm.size, 1))).astype(dtype)
    got = reduced(comm, vectors[comm.rank], format).astype(np.float64)

    def largest(x):
        return np.repeat(np.maximum.reduceat(np.abs(x), np.arange(0, n, BLOCK)), BLOCK)[:n]

    first = sum(largest_error(largest(vector), format, dtype) for vector in vectors)
    magnitudes = np.abs(vectors.astype(np.float64)).sum(0)
    adding = comm.size * np.finfo(dtype).eps * (magnitudes + first)
    exact = vectors.astype(np.float64).sum(0)
    second = largest_error(largest(np.abs(exact) + first + adding), format, dtype)
    assert np.all(np.abs(got - exact) <= first + adding + second)


@all_formats
def test_bits_do_not_depend_on_segments(comm, rng, monkeypatch, format):
    n = int(rng.integers(6000, 20000))
    mine = np.random.default_rng([comm.rank, n]).standard_normal(n).astype(np.float32)
    monkeypatch.setattr(two_hops, "LEAST_SEGMENTS", 1)
    whole = reduced(comm, mine, format)
    for blocks in (1, int(rng.integers(2, 9))):
        monkeypatch.setattr(block_codes, "SEGMENT_BYTES", block_codes_nbytes(blocks * BLOCK, format))
        assert reduced(comm, mine, format).tobytes() == whole.tobytes()


@all_formats
def test_sums_that_overflow_are_nan(comm, format):
    """The sum is infinite, as a dense one is, so its block has no scale."""
    x = np.full(300, np.finfo(np.float32).max)
    got = reduced(comm, x, format)
    if comm.size == 1:
        np.testing.assert_array_equal(got, x)
    else:
        assert np.isnan(got).all()
    assert np.isfinite(reduced(comm, x / (2 * comm.size), format)).all()


@all_formats
def test_several_dimensions_specifications_and_nothing(comm, format):
    x, out = np.full((4, 5), 2.0, np.float32), np.zeros((4, 5), np.float32)
    comm.Allreduce([x, MPI.FLOAT], [out, MPI.FLOAT], MPI.SUM, format)
    np.testing.assert_allclose(out, 2.0 * comm.size, rtol=1e-5)
    comm.Allreduce(np.empty(0), np.empty(0), algorithm=format)
    request = comm.Iallreduce(MPI.IN_PLACE, x, algorithm=format)
    request.Wait()
    assert x.tobytes() == out.tobytes()


@pytest.mark.parametrize("op", [MPI.SUM, mpicomp.AVG])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_on_one_node_are_exact(world, rng, dtype, op):
    """Numbers whose sums any order gives; the bytes are those of ``auto``."""
    near = mpicomp.Comm(world)
    factor = 1 / near.size if op == mpicomp.AVG else 1
    for n in (1, 300, 100_000):
        vectors = rng.integers(-8, 9, (near.size, n))
        mine = vectors[near.rank].astype(dtype_of(dtype))
        wide = np.float64 if dtype == "float64" else np.float32
        expected = (vectors.sum(0).astype(wide) * wide(factor)).astype(mine.dtype)
        for format in FORMATS:
            before = near.traffic
            for in_place in (False, True):
                np.testing.assert_array_equal(reduced(near, mine, format, in_place, op), expected)
            used = near.traffic - before
            for _ in range(2):
                near.Allreduce(MPI.IN_PLACE, mine.copy())
            assert near.traffic - before - used == used
    near.Free()


@all_formats
def test_bytes(comm, format):
    """Codes of all other pieces, and of the own sum to all others, each with a length of 8 bytes per segment."""
    n, size = 64 * BLOCK * comm.size, comm.size
    x = np.ones(n, np.float32)
    before = comm.traffic
    comm.Allreduce(MPI.IN_PLACE, x, algorithm=format)
    used = comm.traffic - before
    piece, segments = block_codes_nbytes(n // size, format), two_hops.LEAST_SEGMENTS
    expected = 2 * (size - 1) * (piece + two_hops.HEAD * segments)
    assert used.bytes_sent == used.bytes_received == expected


@all_formats
def test_refusals(comm, format):
    x, out = np.ones(9, np.float32), np.ones(9, np.float32)
    for op in (MPI.MAX, MPI.PROD, MPI.BAND, "max"):
        with pytest.raises(InvalidArgument, match=rf"algorithm='{format}' needs op=MPI.SUM or mpicomp.AVG, got"):
            comm.Allreduce(x, out, op, format)
    for dtype in (np.int32, np.complex64, np.bool_):
        with pytest.raises(BufferRefused, match=rf"algorithm='{format}' takes buffers of float32, float64, float16 or"):
            comm.Allreduce(x.astype(dtype), out.astype(dtype), algorithm=format)
    with pytest.raises(InvalidArgument, match=rf"algorithm='{format}' has no error bound"):
        comm.Allreduce(x, out, bound=1e-3, algorithm=format)
    with pytest.raises(InvalidArgument, match=r"is lossy, for Comm\.Allreduce alone"):
        comm.allreduce_in_place(x, format)
    with pytest.raises(InvalidArgument, match=r"is lossy, for Comm\.Allreduce alone"):
        mpicomp.Reducer(comm, "dense", algorithm=format)
    np.testing.assert_array_equal(out, 1)


def test_different_formats_are_refused(comm):
    if comm.size == 1:
        pytest.skip("one rank gives one format")
    with pytest.raises(Disagreement, match="algorithm=int8"):
        comm.Allreduce(MPI.IN_PLACE, np.ones(9), algorithm="int8" if comm.rank else "int4")
