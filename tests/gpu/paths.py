"""Program of every rank of an MPI job: the paths of arrays in GPU memory to other ranks, beside `calls.py`.

``mpirun -n 2 python tests/gpu/paths.py``; rank 0 prints a JSON line per case. Cases that need more than this machine
has are left out, with the reason. Every rank takes a GPU of its own if there are enough.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
from mpi4py import MPI

import mpicomp
from mpicomp.comm import gpu_probe, nccl
from mpicomp.comm.buffers import Vector
from mpicomp.errors import InvalidArgument
from mpicomp.ops.device import device_of
from mpicomp.schemes import averaging

N = 100_003
NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size


class LeftOut(Exception):
    """A case needs more than this machine has."""


def helper_thread() -> None:
    """An all-reduce in flight makes no context on GPU 0 if the array is on another one: before any other case."""
    if cupy.cuda.runtime.getDeviceCount() < 2:
        raise LeftOut("one GPU")
    try:
        state = ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState
    except (OSError, AttributeError) as error:
        raise LeftOut(str(error)) from error

    def active() -> bool:
        flags, known = ctypes.c_uint(), ctypes.c_int()
        code = state(0, ctypes.byref(flags), ctypes.byref(known))
        assert code in (0, NOT_INITIALIZED), f"cuDevicePrimaryCtxGetState fails with {code}"
        return code == 0 and bool(known.value)

    cupy.cuda.Device(1 + RANK % (cupy.cuda.runtime.getDeviceCount() - 1)).use()
    x, before = cupy.ones(N, "float32"), active()
    comm = mpicomp.Comm(WORLD)
    comm.Iallreduce(MPI.IN_PLACE, x).Wait()
    np.testing.assert_array_equal(x.get(), SIZE)
    comm.Free()
    assert before or not active(), "there is a context on GPU 0"


def probe() -> None:
    """MPI that reports CUDA support takes CUDA memory."""
    os.environ["MPICOMP_GPU_PATH"] = "auto"
    comm = mpicomp.Comm(WORLD)
    path, reason = comm.gpu_path
    comm.Free()
    right, seen = WORLD.bcast(gpu_probe.probe() if RANK == 0 else None)
    if RANK == 0:
        print(json.dumps({"case": "MPI and CUDA memory", "path": path, "reason": reason, "probe": seen}), flush=True)
    assert path != "direct" or right, f"MPI claims CUDA memory, and {seen}"


def one_rank() -> None:
    """Every call of NCCL, of a communicator of one rank."""
    own = made(MPI.COMM_SELF)
    x, y = cupy.arange(N, dtype="float32"), cupy.zeros(N, "float32")
    own.allreduce(x, Vector(y, None, device_of(y)), "sum")
    np.testing.assert_array_equal(y.get(), x.get())
    y.fill(0)
    own.reduce_scatter(x, y, [N])
    np.testing.assert_array_equal(y.get(), x.get())
    own.broadcast(x.view("uint8"), 0)
    y.fill(0)
    own.gather(x.view("uint8"), y.view("uint8"), [x.nbytes])
    np.testing.assert_array_equal(y.get(), x.get())
    y.fill(0)
    own.exchange({0: x.view("uint8")}, {0: y.view("uint8")})
    np.testing.assert_array_equal(y.get(), x.get())


def made(comm: Any) -> nccl.Nccl:
    """Return NCCL's communicator, if there can be one."""
    try:
        return nccl.Nccl(comm)
    except InvalidArgument as error:
        raise LeftOut(str(error)) from error


def verbs(path: str) -> None:
    """The messages of a reducer: all-reduces, broadcasts, all-gathers, and messages between pairs."""
    os.environ["MPICOMP_GPU_PATH"] = path
    comm = mpicomp.Comm(WORLD)
    if path == "auto":
        made(comm)
    x = cupy.full(N, RANK + 1, "float32")
    comm.allreduce_in_place(x)
    np.testing.assert_array_equal(x.get(), SIZE * (SIZE + 1) // 2)
    x.fill(RANK)
    comm.broadcast(x, SIZE - 1)
    np.testing.assert_array_equal(x.get(), SIZE - 1)
    for lengths in ([N] * SIZE, [N // (1 + one) for one in range(SIZE)]):
        flat, counts = comm.gather_to_all(cupy.full(lengths[RANK], RANK, "int32"))
        np.testing.assert_array_equal(flat.get(), np.repeat(np.arange(SIZE), lengths))
        assert counts == lengths
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    got = comm.send_and_receive({right: cupy.full(N, RANK, "uint8")}, {left: N}, x)
    np.testing.assert_array_equal(got[left].get(), left)
    comm.Free()


def buckets(path: str) -> None:
    """A dense mean in buckets that are in flight at once has the bits of that of host arrays."""
    os.environ["MPICOMP_GPU_PATH"] = path
    comm, whole = mpicomp.Comm(WORLD), averaging.BUCKET_BYTES
    if path == "auto":
        made(comm)
    averaging.BUCKET_BYTES = N  # eight, of the values in float64
    gradient = ((np.arange(N) + RANK) % 9).astype("float32")
    reducers = [mpicomp.Reducer(comm, "dense:values=float64") for _ in range(2)]
    for _ in range(3):
        expected, found = reducers[0].reduce(gradient), reducers[1].reduce(cupy.asarray(gradient))
        np.testing.assert_array_equal(found.get(), expected)
    averaging.BUCKET_BYTES = whole
    comm.Free()


CASES: tuple[tuple[str, Callable[[], None]], ...] = (
    ("helper thread on its GPU", helper_thread),
    ("what MPI says about CUDA memory", probe),
    ("NCCL of one rank", one_rank),
    ("verbs, staged", lambda: verbs("staged")),
    ("verbs by NCCL", lambda: verbs("auto")),
    ("buckets in flight, staged", lambda: buckets("staged")),
    ("buckets in flight, by NCCL", lambda: buckets("auto")),
)


def main() -> int:
    failed = 0
    for name, case in CASES:
        if case is not helper_thread:
            cupy.cuda.Device(RANK % cupy.cuda.runtime.getDeviceCount()).use()
        result: dict[str, Any] = {}
        try:
            case()
        except LeftOut as reason:
            result = {"left out": str(reason)}
        except AssertionError as error:  # any other may leave ranks behind: it ends the job
            result = {"error": f"{error}"[:300]}
        right = WORLD.allreduce("error" not in result, MPI.LAND)
        if "left out" not in result:
            result["passed"] = right
        failed += not right
        if RANK == 0:
            print(json.dumps({"case": f"{name}, {SIZE} ranks", **result}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
