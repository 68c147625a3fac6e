"""A step of PowerSGD on ResNet-50's gradients, ours beside PyTorch's hook.

``python tests/gpu/powersgd.py [cpu] [DIVISOR]``. One process, so that nothing travels: the times are those of the work
on the device and in Python. Both keep an error memory and start from the last step's factor; medians over steps, each
waited for; a JSON line each. ``cpu`` tries it without a GPU, DIVISOR makes the layers narrower.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from models import resnet50
from mpi4py import MPI
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

import mpicomp

RANK, WARM, STEPS = 4, 4, 15
MOVED = 32  # bytes per element: two products read gradient and memory, the mean is written, the memory is updated
Step = Callable[[], Any]


class Bucket:
    """Stand-in for PyTorch's bucket of gradients, with the methods that its hook calls; it holds all gradients."""

    def __init__(self, shapes: list[tuple[int, ...]], device: str) -> None:
        self._sizes, self._shapes = [int(np.prod(shape)) for shape in shapes], shapes
        self._buffer = torch.randn(sum(self._sizes), device=device)

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        return [part.view(shape) for part, shape in zip(self._buffer.split(self._sizes), self._shapes, strict=True)]

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def theirs(shapes: list[tuple[int, ...]], device: str) -> Step:
    store = dist.HashStore()
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=store, rank=0, world_size=1)
    state = PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=2, min_compression_rate=1)
    bucket = Bucket(shapes, device)
    return lambda: powerSGD_hook(state, bucket).wait()


def ours(shapes: list[tuple[int, ...]], device: str) -> Step:
    if device == "cuda":
        import cupy as xp
    else:
        xp = np
    reducer = mpicomp.Reducer(mpicomp.Comm(MPI.COMM_SELF), f"powersgd:rank={RANK}")
    gradients = {str(i): xp.random.standard_normal(shape).astype(xp.float32) for i, shape in enumerate(shapes)}
    out = {name: xp.empty_like(one) for name, one in gradients.items()}
    return lambda: reducer.reduce(gradients, out)


def seconds(step: Step, device: str) -> float:
    """The median of some steps after others that warm up: kernels are compiled, pools and memories filled."""
    times = []
    for number in range(WARM + STEPS):
        start = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()  # the whole device, so CuPy's streams as well
        if number >= WARM:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def main(words: list[str]) -> int:
    device = "cpu" if "cpu" in words else "cuda"
    shapes = resnet50(int(next((word for word in words if word.isdecimal()), 1)))
    elements = sum(int(np.prod(shape)) for shape in shapes)
    for name, make in (("ours", ours), ("PyTorch's", theirs)):
        spent = seconds(make(shapes, device), device)
        result = {"case": f"PowerSGD step, rank {RANK}, ResNet-50, one process: {name}", "elements": elements,
                  "seconds": spent, "moved_bytes": MOVED * elements, "bytes_per_s": MOVED * elements / spent}
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
