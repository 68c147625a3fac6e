"""In every rank of an MPI job: each scheme on this rank's arrays in GPU memory, against the same scheme on the host.

``mpirun -n 2 python tests/gpu/schemes.py [cpu|emulated] [SCHEME ...]``; rank 0 prints a JSON line a scheme. Where there
is no GPU, ``cpu`` tries the script on the host, and ``emulated`` runs the CUDA kernels on the CPU (minutes).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicomp
from mpicomp.errors import MpicompError
from mpicomp.schemes import names

STEPS = 3
# Selection in each array by itself, which is not the default of these: as many launches for all arrays as for one.
BY_STEP = [name for name in names() if name != "auto"]  # whose choices differ, as the clocks of two reducers do
PER_TENSOR = tuple(f"{name}:layers=per-tensor" for name in ("scalecom", "gaussiank", "sidco", "arctopk", "randomk"))
# Memories, exchanges and codecs that no scheme of its own name has.
FURTHER = ("topk:memory=ef21,eta=0.1", "topk:memory=adam-update,density=0.035", "randomk:memory=shifted",
           "threshold:memory=update", "qsgd:exchange=pieces", "natural:exchange=pieces", "int8:exchange=pieces",
           "int4:memory=residual,rounding=stochastic", "topk:codec=natural")
SHAPES = ((64, 3, 7, 7), (64,), (256, 64), (1000, 33), (1000,), (7,))
TOLERANCE = 1e-4  # sums may be added up in another order, and what is sent differ in its last bits


def on_gpu(array: np.ndarray) -> Any:
    import cupy

    return cupy.asarray(array)


def on_host(array: Any) -> np.ndarray:
    return array.view(np.ndarray) if isinstance(array, np.ndarray) else array.get()


def emulated() -> Any:
    """Let kernels run on the CPU from now on; what puts an array on that device."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stand_ins"))
    import emulated_gpu

    from mpicomp import ops
    from mpicomp.ops import device, gpu
    from mpicomp.ops.gpu import cuda_runtime

    ops.register("emulatedgpu", gpu)
    cuda_runtime.use(emulated_gpu.CountingRuntime())
    device.register(emulated_gpu.EmulatedGPU())
    return emulated_gpu.on_device


def gradients(rank: int, step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([2024, rank, step])
    return {f"tensor {i}": rng.standard_normal(shape).astype(np.float32) for i, shape in enumerate(SHAPES)}


def difference(comm: Any, scheme: str, place: Any) -> float:
    """The largest difference of the means, on any rank, relative to the largest mean."""
    here, there = mpicomp.Reducer(comm, scheme), mpicomp.Reducer(comm, scheme)
    worst = np.zeros(1)
    for step in range(STEPS):
        fresh = gradients(comm.rank, step)
        expected = here.reduce(fresh)
        actual = there.reduce({name: place(one) for name, one in fresh.items()})
        for name, one in expected.items():
            largest = max(float(np.abs(one).max()), 1e-30)
            worst[0] = max(worst[0], float(np.abs(on_host(actual[name]) - one).max()) / largest)
    comm.Allreduce(MPI.IN_PLACE, worst, MPI.MAX)
    return float(worst[0])


def main() -> int:
    words = sys.argv[1:]
    place = (lambda array: array) if "cpu" in words else emulated() if "emulated" in words else on_gpu
    comm, failed = mpicomp.Comm(MPI.COMM_WORLD), 0
    for name in [word for word in words if word not in ("cpu", "emulated")] or [*BY_STEP, *PER_TENSOR, *FURTHER]:
        try:
            worst = difference(comm, name, place)
            result = {"difference": worst, "passed": worst <= TOLERANCE}
        except Exception as error:
            if comm.size > 1 and not isinstance(error, MpicompError):
                raise  # perhaps on one rank alone: the others would wait
            result = {"error": f"{type(error).__name__}: {error}", "passed": False}
        failed += not result["passed"]
        if comm.rank == 0:
            print(json.dumps({"case": f"{name}, {comm.size} ranks", **result}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
