"""The reproducible mode: the bits of the sum in rank order, whatever the schedule, the segments and the nodes."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from mpi4py import MPI

from mpicomp import Comm
from mpicomp.allreduce import direct, names
from mpicomp.comm import node_memory
from mpicomp.errors import InvalidArgument, MpicompError

OPERATIONS = {"SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum}
DTYPES = ("float32", "float64", "float16", "int8", "int64", "uint16")


def everyone(size, n, dtype):
    """Every rank's vector, the same list on every rank; sums of them depend on the order."""
    vectors = []
    for rank in range(size):
        rng = np.random.default_rng([n, rank])
        if np.dtype(dtype).kind == "f":
            vectors.append((rng.standard_normal(n) * 4.0 ** rng.integers(-3, 3, n)).astype(dtype))
        else:
            vectors.append(rng.integers(0, 127, n).astype(dtype))
    return vectors


def in_rank_order(vectors, function):
    """The sum that the documentation promises; half precision in float32, rounded once."""
    dtype = vectors[0].dtype
    wide = np.float32 if dtype == np.float16 else dtype
    with np.errstate(over="ignore"):
        return functools.reduce(function, [vector.astype(wide) for vector in vectors]).astype(dtype)


def bits(array):
    return array.view(f"u{array.itemsize}")


@pytest.fixture(params=["one node", "nodes of two", "nodes of one", "short segments"])
def own(request, world, monkeypatch):
    if request.param.startswith("nodes"):
        monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "2" if request.param.endswith("two") else "1")
    if request.param == "short segments":
        monkeypatch.setattr(node_memory, "SLOT_BYTES", 1 << 10)
    if request.param != "one node":
        monkeypatch.setattr(direct, "SEGMENT_BYTES", 1 << 9)
    comm = Comm(world, reproducible=True)
    yield comm
    comm.Free()


def test_rank_order_whatever_the_schedule(own):
    assert own.reproducible
    for n in (1, 1000, 5003):
        for dtype in DTYPES:
            vectors = everyone(own.size, n, dtype)
            for op, function in OPERATIONS.items():
                want = in_rank_order(vectors, function)
                for algorithm in names() if op == "SUM" and n == 5003 else ["auto"]:
                    got = np.empty_like(want)
                    own.Allreduce(vectors[own.rank], got, getattr(MPI, op), algorithm)
                    np.testing.assert_array_equal(bits(got), bits(want), f"{op} {dtype} {n} {algorithm}")


def test_also_in_flight_and_in_the_exchanges(own):
    vectors = everyone(own.size, 3001, "float32")
    want = in_rank_order(vectors, np.add)
    got, mine = np.empty_like(want), vectors[own.rank].copy()
    own.Iallreduce(vectors[own.rank], got, algorithm="ring").Wait()
    own.allreduce_in_place(mine, "halving_doubling")
    np.testing.assert_array_equal(bits(got), bits(want))
    np.testing.assert_array_equal(bits(mine), bits(want))


def test_signed_zero_and_nan(own):
    """Those, too, must not depend on the schedule: the last of two equal zeros, NaN wherever one is."""
    kinds = [[-0.0, 0.0, 1.0], [0.0, -0.0, np.nan]]
    vectors = [np.array(kinds[rank % 2] * 333, np.float32) for rank in range(own.size)]
    for op in ("MIN", "MAX"):
        got = np.empty_like(vectors[0])
        own.Allreduce(vectors[own.rank], got, getattr(MPI, op))
        np.testing.assert_array_equal(np.isnan(got[2::3]), own.size > 1)
        for kind in (0, 1):
            np.testing.assert_array_equal(bits(got[kind::3].copy()), bits(vectors[-1][kind::3].copy()), op)


def test_logical_and_bitwise(own):
    mine = np.array([own.rank, 1 << own.rank, 0], np.int32)
    got = np.empty_like(mine)
    own.Allreduce(mine, got, MPI.BOR)
    assert got[1] == (1 << own.size) - 1
    own.Allreduce(mine, got, MPI.LAND)
    assert got.tolist() == [0, 1, 0] if own.size > 1 else got[2] == 0


def test_what_it_cannot_promise_is_refused(own):
    x = np.ones(3, np.complex64)
    with pytest.raises(InvalidArgument, match="reproducible=True covers"):
        own.Allreduce(MPI.IN_PLACE, [x, MPI.COMPLEX])


def test_the_environment_of_rank_0_decides(world, monkeypatch):
    monkeypatch.setenv("MPICOMP_REPRODUCIBLE", "1" if world.rank == 0 else "0")
    comm = Comm(world)
    assert comm.reproducible
    comm.Free()
    comm = Comm(world, reproducible=False)
    assert not comm.reproducible
    comm.Free()


@pytest.mark.parametrize("name", ["MPICOMP_REPRODUCIBLE", "MPICOMP_RANKS_PER_NODE"])
def test_a_bad_setting_is_refused_by_all(world, monkeypatch, name):
    monkeypatch.setenv(name, "perhaps")
    with pytest.raises(InvalidArgument, match=f"{name} must be .* got 'perhaps'"):
        Comm(world)


def test_ranks_that_differ_are_refused(world):
    if world.size == 1:
        return
    with pytest.raises(MpicompError, match="reproducible must be the same on all ranks"):
        Comm(world, reproducible=world.rank == 0)
