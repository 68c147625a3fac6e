"""Real tensors of PyTorch and arrays of JAX where NumPy's are expected."""

import needs_torch  # noqa: F401
import numpy as np
import pytest
import torch
from mpi4py import MPI

import mpicomp
from mpicomp.errors import BufferRefused, InvalidArgument

N = 12
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def expected(comm):
    return comm.size * np.arange(N) + comm.size * (comm.size - 1) // 2


@pytest.mark.parametrize("algorithm", ["auto", "ring", "node_shared", "native"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_are_added(comm, dtype, algorithm):
    mine, total = torch.arange(N, dtype=dtype) + comm.rank, torch.zeros(N, dtype=dtype)
    comm.Allreduce(mine, total, algorithm=algorithm)
    assert total.tolist() == expected(comm).tolist()
    comm.Allreduce(MPI.IN_PLACE, [mine, (4, 2)], algorithm=algorithm)
    assert mine[2:6].tolist() == expected(comm)[2:6].tolist()


@pytest.mark.parametrize(("make", "text"), [
    (lambda: torch.ones(4, requires_grad=True), "use tensor.detach"),
    (lambda: torch.ones(8)[::2], "contiguous"),
    (lambda: torch.ones(4).to(torch.float8_e5m2), "convert it to float32"),
])  # fmt: skip
def test_tensors_that_are_refused(comm, make, text):
    with pytest.raises(BufferRefused, match=text):
        comm.Allreduce(MPI.IN_PLACE, make())
    with pytest.raises(BufferRefused, match=text):
        comm.Iallreduce(MPI.IN_PLACE, make()).Wait()
    with pytest.raises(BufferRefused, match=text):
        mpicomp.Reducer(comm, "dense").reduce(make() if comm.rank == 0 else torch.ones(4))


def test_a_reducer_belongs_to_its_tensors(comm):
    reducer = mpicomp.Reducer(comm, "dense")
    reducer.reduce(torch.ones(4))
    with pytest.raises(InvalidArgument, match="this reducer's error memory is for"):
        reducer.reduce(torch.ones(5))


@pytest.mark.parametrize("scheme", ["dense", "topk:density=1"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_are_averaged(comm, dtype, scheme):
    reducer, mine = mpicomp.Reducer(comm, scheme), torch.arange(N, dtype=dtype) + 2 * comm.rank
    mean = reducer.reduce((mine,))
    assert isinstance(mean, tuple)
    assert mean[0].dtype.name == str(dtype).removeprefix("torch.")
    np.testing.assert_array_equal(mean[0], np.arange(N) + comm.size - 1)
    assert reducer.reduce((mine,), out=[mine])[0] is mine
    assert mine.tolist() == (np.arange(N) + comm.size - 1).tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_jax_arrays_are_read_and_never_written(comm, dtype):
    jnp = pytest.importorskip("jax.numpy")
    mine = jnp.arange(N, dtype=dtype) + 2 * comm.rank
    kept = np.array(mine)
    total = np.zeros(N, mine.dtype)
    comm.Allreduce(mine, total)
    np.testing.assert_array_equal(total, comm.size * (np.arange(N) + comm.size - 1))
    with pytest.raises(BufferRefused, match="must be writable"):
        comm.Allreduce(MPI.IN_PLACE, mine)
    for scheme in ("dense", "topk:density=1"):
        reducer = mpicomp.Reducer(comm, scheme)
        mean = reducer.reduce({"w": mine, "b": mine.reshape(3, 4)})
        np.testing.assert_array_equal(mean["w"], np.arange(N) + comm.size - 1)
        np.testing.assert_array_equal(mean["b"].reshape(-1), mean["w"])
        assert jnp.asarray(mean["w"]).dtype == mine.dtype
        with pytest.raises(BufferRefused, match="out must be writable, but w is read-only"):
            reducer.reduce({"w": mine, "b": mine.reshape(3, 4)}, out={"w": mine, "b": mine.reshape(3, 4)})
    np.testing.assert_array_equal(np.asarray(mine), kept)
