"""The schedule ``nccl``: refused on every rank where it cannot be, else what NCCL is asked, for which MPI stands in."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
from emulated_gpu import CountingRuntime, DeviceFunctions, EmulatedGPU, on_device, on_host
from mpi4py import MPI

import mpicomp
from mpicomp import ops
from mpicomp.comm import nccl
from mpicomp.errors import BufferRefused, InvalidArgument
from mpicomp.ops import device as device_module
from mpicomp.ops import gpu
from mpicomp.ops.gpu import cuda_runtime

TYPES = {"NCCL_FLOAT32": np.float32, "NCCL_FLOAT64": np.float64, "NCCL_INT32": np.int32, "NCCL_UINT8": np.uint8}
OPS = {"NCCL_SUM": MPI.SUM, "NCCL_PROD": MPI.PROD, "NCCL_MIN": MPI.MIN, "NCCL_MAX": MPI.MAX}


class Communicator:
    """NcclCommunicator: the same call, by MPI on the memory behind the pointers."""

    made = 0

    def __init__(self, size, unique, rank):
        assert (size, rank) == (MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank)
        assert unique == ("unique", 0)  # rank 0's
        Communicator.made += 1

    def allReduce(self, send, receive, count, kind, op, stream):
        assert stream == 77
        nbytes = count * np.dtype(TYPES[kind]).itemsize
        memory = np.frombuffer((ctypes.c_char * nbytes).from_address(receive), TYPES[kind])
        MPI.COMM_WORLD.Allreduce(np.frombuffer((ctypes.c_char * nbytes).from_address(send), TYPES[kind]).copy(),
                                 memory, OPS[op])


class Library:
    """cupy.cuda, as far as NCCL needs it."""

    def __init__(self, log):
        self.nccl = SimpleNamespace(
            available=True, get_unique_id=lambda: ("unique", MPI.COMM_WORLD.rank), NcclCommunicator=Communicator,
            **{name: name for name in (*nccl.TYPES.values(), *nccl.OPS.values())},
        )
        self.own = MPI.COMM_WORLD.rank  # whose GPU
        self.runtime = SimpleNamespace(getDevice=lambda: 0, deviceGetPCIBusId=lambda _: f"0000:{self.own:02x}:00.0")
        stream = SimpleNamespace(ptr=77, synchronize=lambda: log.append("waited"))
        self.get_current_stream = lambda: stream


@pytest.fixture
def cuda(monkeypatch):
    log = []
    library, functions = Library(log), DeviceFunctions()
    functions.cuda = library
    runtime = CountingRuntime()
    runtime.xp, runtime.nccl = functions, lambda: library.nccl
    monkeypatch.setattr(ops, "_HOMES", {**ops._HOMES, "emulatedgpu": gpu})
    previous, fake = cuda_runtime.use(runtime), EmulatedGPU()
    device_module.register(fake)
    library.log = log
    yield library
    device_module.unregister(fake)
    cuda_runtime.use(previous)
    ops._FOUND.clear()


@pytest.fixture
def own(world):
    comm = mpicomp.Comm(world)
    yield comm
    comm.Free()


def test_every_rank_with_a_gpu_of_its_own(own, cuda):
    before = Communicator.made
    for dtype in (np.float32, np.float64, np.int32):
        for op, expected in ((MPI.SUM, sum), (MPI.MAX, max)):
            mine = [np.arange(50, dtype=dtype) % 7 + rank for rank in range(own.size)]
            x, y = on_device(mine[own.rank]), on_device(np.zeros(50, dtype))
            own.Allreduce(x, y, op, algorithm="nccl")
            own.Allreduce(MPI.IN_PLACE, x, op, algorithm="nccl")
            wanted = sum(mine) if expected is sum else mine[-1]
            np.testing.assert_array_equal(on_host(y), wanted)
            np.testing.assert_array_equal(on_host(x), wanted)
    assert Communicator.made - before == (own.size > 1)  # kept from call to call
    assert len(cuda.log) == (12 if own.size > 1 else 0)
    assert own.traffic.bytes_sent >= 2 * (own.size - 1) * 50 * 4 // own.size


def test_a_reducer_may_use_it(own, cuda):
    reducer = mpicomp.Reducer(own, "dense", algorithm="nccl")
    mean = reducer.reduce(on_device(np.full(30, own.rank, np.float32)))
    np.testing.assert_array_equal(on_host(mean), np.full(30, (own.size - 1) / 2, np.float32))


def test_a_reducer_of_host_arrays_refuses_it_before_anything_changes(own, cuda):
    reducer = mpicomp.Reducer(own, "topk:k=2", algorithm="nccl")
    with pytest.raises(InvalidArgument, match="adds arrays in CUDA memory, got arrays in host memory"):
        reducer.reduce(np.ones(30, np.float32))
    assert reducer.step == 0
    assert reducer.memory_norm() == 0


def test_ranks_that_share_a_gpu_are_refused(own, cuda):
    if own.size == 1:
        pytest.skip("needs two ranks")
    cuda.own = 0
    with pytest.raises(InvalidArgument, match=rf"{own.size} ranks share GPU .*0000:00:00.0: start one rank per GPU"):
        own.Allreduce(MPI.IN_PLACE, on_device(np.ones(3, np.float32)), algorithm="nccl")


def test_nccl_missing_on_one_rank_is_told_to_all(own, cuda):
    if own.size == 1:
        pytest.skip("needs two ranks")
    cuda.nccl.available = own.rank != own.size - 1
    with pytest.raises(InvalidArgument, match=f"not possible: rank {own.size - 1}: CuPy here finds no NCCL"):
        own.Allreduce(MPI.IN_PLACE, on_device(np.ones(3, np.float32)), algorithm="nccl")


def test_host_arrays_and_other_operations_are_refused(own, cuda):
    with pytest.raises(BufferRefused, match="arrays of numbers in CUDA memory"):
        own.Allreduce(MPI.IN_PLACE, np.ones(3, np.float32), algorithm="nccl")
    with pytest.raises(InvalidArgument, match="got op=land of int32"):
        own.Allreduce(MPI.IN_PLACE, on_device(np.ones(3, np.int32)), MPI.LAND, algorithm="nccl")
    with pytest.raises(InvalidArgument, match="of int16"):
        own.Allreduce(MPI.IN_PLACE, on_device(np.ones(3, np.int16)), algorithm="nccl")
