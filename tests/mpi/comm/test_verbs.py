"""broadcast, gather_to_all, agree: what the compressed exchanges are made of."""

from __future__ import annotations

import costs
import numpy as np
import pytest

import mpicomp
from mpicomp.comm import allgather
from mpicomp.comm import broadcast as broadcast_module
from mpicomp.errors import BufferRefused, Disagreement, InvalidArgument, MpicompError


def test_broadcast(comm):
    for n in (0, 1, 1000, 60_000):
        for root in sorted({0, comm.size // 2, comm.size - 1}):
            for dtype in ("float32", "uint8", "complex128"):
                content = (np.arange(n) % 251 + root).astype(dtype)
                x = content.copy() if comm.rank == root else np.zeros(n, dtype)
                comm.broadcast(x, root)
                np.testing.assert_array_equal(x, content)


@pytest.fixture
def network(comm, monkeypatch):
    """The schedules that ranks on several nodes use."""
    monkeypatch.setattr(comm._engine.link, "one_node", False)


def test_broadcast_in_many_segments(comm, network, monkeypatch):
    monkeypatch.setattr(broadcast_module, "SEGMENT_BYTES", 64)
    for n in (1, 64, 65, 1000):
        x = np.arange(n, dtype=np.uint8) if comm.rank == 0 else np.zeros(n, np.uint8)
        comm.broadcast(x, 0)
        np.testing.assert_array_equal(x, np.arange(n, dtype=np.uint8))


def test_broadcast_from_read_only(comm):
    x = np.arange(100.0)
    x.flags.writeable = comm.rank != 0
    comm.broadcast(x, 0)


def lengths(comm, kind):
    return {
        "none": [0] * comm.size,
        "equal": [500] * comm.size,
        "rising": [37 * rank for rank in range(comm.size)],
        "one": [0] * (comm.size - 1) + [3],
        "long": [20_000 + rank for rank in range(comm.size)],
        "uneven": [100_000 if rank == 0 else rank for rank in range(comm.size)],
    }[kind]


@pytest.mark.parametrize("kind", ["none", "equal", "rising", "one", "long", "uneven"])
def test_gather_to_all(comm, kind):
    counts = lengths(comm, kind)
    for dtype in ("int64", "float16"):
        x = np.full(counts[comm.rank], comm.rank + 1, dtype)
        flat, got = comm.gather_to_all(x)
        assert got == counts
        assert flat.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(flat, np.repeat(np.arange(comm.size) + 1, counts).astype(dtype))


def test_short_and_long_gather_agree(comm, monkeypatch):
    x = np.arange(50.0) + comm.rank
    first, _ = comm.gather_to_all(x)
    monkeypatch.setattr(allgather, "BRUCK_BYTES", 0)
    second, _ = comm.gather_to_all(x)
    np.testing.assert_array_equal(first, second)


def test_verbs_count_their_bytes(comm, network):
    before = comm.traffic
    comm.broadcast(np.ones(500_000, np.uint8), 0)  # long enough for a chain of 64 ranks
    used = comm.traffic - before
    assert used.bytes_sent == (500_000 if comm.rank < comm.size - 1 else 0)
    assert used.bytes_received == (500_000 if comm.rank > 0 else 0)
    before = comm.traffic
    comm.gather_to_all(np.ones(10_000, np.float64))
    used = comm.traffic - before
    assert used.bytes_sent == used.bytes_received == (comm.size - 1) * (80_000 + 8)
    assert used.modelled == (comm.size - 1) * 8
    assert costs.gather_ring(80_000, comm.size).nbytes == (comm.size - 1) * 80_000


def test_allreduce_in_place(comm):
    for dtype in ("float32", "float16", "int64"):
        for algorithm in ("auto", "ring", "halving_doubling", "direct", "native"):
            x = np.full(3000, comm.rank + 1, dtype)
            comm.allreduce_in_place(x, algorithm)
            assert set(x.tolist()) == {comm.size * (comm.size + 1) / 2}
    x = np.array([float(comm.rank)])
    comm.allreduce_in_place(x, op="max")
    assert x[0] == comm.size - 1


def test_a_call_that_one_rank_refuses_is_not_compared_by_it_alone(world, monkeypatch):
    """The others know their call, and would wait in it for ever."""
    monkeypatch.setenv("MPICOMP_CHECK", "auto")
    own = mpicomp.Comm(world)
    compared = [own.compare_call("move") for _ in range(70)]
    assert compared == [own.size > 1] * 64 + [False] * 6
    if own.rank == 0:
        with pytest.raises(InvalidArgument, match="no such root"):
            own.compare_call("refused", InvalidArgument("no such root"))
    else:
        assert not own.compare_call("move")
    own.Free()


def test_agreement(comm):
    comm.agree("all say this")
    comm.fail_together(None)
    if comm.size == 1:
        return
    last = comm.size - 1
    with pytest.raises(Disagreement, match=f"ranks? 0.*: step 4; rank {last}: step 5"):
        comm.agree("step 5" if comm.rank == last else "step 4")
    comm.agree("and go on")


def test_an_error_of_one_rank_is_raised_by_all(comm):
    last = comm.size - 1
    with pytest.raises(BufferRefused, match=rf"^rank {last}: too long$"):
        comm.agree("same", BufferRefused("too long") if comm.rank == last else None)
    with pytest.raises(FileNotFoundError, match="no such"):
        comm.fail_together(FileNotFoundError("no such file") if comm.rank == 0 else None)
    with pytest.raises(MpicompError, match="SomeOther: rank 0: text"):
        comm.fail_together(type("SomeOther", (Exception,), {})("text") if comm.rank == 0 else None)
    with pytest.raises(ValueError, match=r"rank 0: bad" + (r" \(the same on rank" if comm.size > 1 else "")):
        comm.fail_together(ValueError("bad"))


def wrong_calls(last):
    """The differing call of one rank, and the text that the error must contain."""
    from mpi4py import MPI

    x = np.arange(10.0)
    return {
        "count": ((x[:9],) if last else (x,), {}, "10 elements"),
        "dtype": ((x.astype("f4") if last else x,), {}, "float64"),
        "op": ((x, MPI.MAX if last else MPI.SUM), {}, "op=sum"),
        "algorithm": ((x,), {"algorithm": "ring" if last else "auto"}, "algorithm=auto"),
        "kind of op": ((x, MPI.MAXLOC if last else MPI.SUM), {}, "MAXLOC"),
    }


def test_mismatched_calls_fail_everywhere_and_touch_nothing(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    last = comm.rank == comm.size - 1
    for name, ((x, *op), options, text) in wrong_calls(last).items():
        y = np.full_like(x, -1)
        with pytest.raises(Disagreement, match=text) as caught:
            comm.Allreduce(x, y, *op, **options)
        assert f"rank {comm.size - 1}: Allreduce call" in str(caught.value), name
        assert (y == -1).all()
        assert np.array_equal(x, np.arange(len(x)))
    z = np.ones(3)
    comm.Allreduce(np.ones(3), z)
    assert (z == comm.size).all()
