"""Every operation is tested on every implementation: three instruction sets, and the CUDA kernels on the CPU."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from cuda_on_cpu import CheckedRuntime, EmulatedRuntime
from on_gpu import OnGPU

from mpicomp.errors import InvalidArgument
from mpicomp.ops import _cpu, cpu, gpu
from mpicomp.ops.gpu import cuda_runtime

ISAS = ("avx512", "avx2", "baseline")


@pytest.fixture(scope="session")
def emulated_cuda():
    """mpicomp.ops.gpu, its kernels run on the CPU; with MPICOMP_TEST_GPU=1 on the GPU (tests/gpu_check.py sets it).

    With MPICOMP_CHECK_CUDA=FILE every access of theirs to memory is looked at (tests/sanitize.py sets it).
    """
    if os.environ.get("MPICOMP_TEST_GPU") == "1":
        yield OnGPU()
        return
    previous = cuda_runtime.use(CheckedRuntime() if "MPICOMP_CHECK_CUDA" in os.environ else EmulatedRuntime())
    yield gpu
    cuda_runtime.use(previous)


def force_isa(name: str) -> None:
    try:
        _cpu.force_isa(name)
    except InvalidArgument as error:
        pytest.skip(str(error))


@pytest.fixture(params=ISAS)
def cpu_ops(request):
    """mpicomp.ops.cpu under each instruction set this processor has."""
    force_isa(request.param)
    yield cpu
    _cpu.force_isa("")


@pytest.fixture(params=[*ISAS, "cuda"])
def ops(request):
    """Every implementation that has to agree with the oracle."""
    if request.param == "cuda":
        yield request.getfixturevalue("emulated_cuda")
        return
    force_isa(request.param)
    yield cpu
    _cpu.force_isa("")


@pytest.fixture
def rng():
    """Fresh numbers every run; the seed is printed with a failure, and MPICOMP_SEED brings it back."""
    seed = int(os.environ.get("MPICOMP_SEED", random.randrange(2**32)))
    print(f"MPICOMP_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def wide_indices(monkeypatch):
    """Selections answer with 64-bit indices, as they do for vectors over 2^31 - 1 elements."""
    _cpu.set_index_limit(0)
    for home in (gpu.base, gpu.collect, gpu.largest, gpu.selection, gpu.sketch, gpu.unions):
        monkeypatch.setattr(home, "index_dtype", lambda n: np.dtype(np.int64))
    yield
    _cpu.set_index_limit(2**31 - 1)
