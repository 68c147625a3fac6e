"""Every operation is tested on every implementation: three instruction sets, and the CUDA kernels on the CPU.

With MPICOMP_TEST_GPU=1, which tests/gpu/gpu_check.py sets, only the tests of the kernels run, on the GPU, and print
their results as lines of JSON. With MPICOMP_OPS=reference they need nothing compiled.
"""

from __future__ import annotations

import json
import os
import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from cuda_on_cpu import CheckedRuntime, EmulatedRuntime
from on_gpu import OnGPU

import mpicomp.ops
from mpicomp.errors import InvalidArgument
from mpicomp.ops import extension, gpu, oracle, spans
from mpicomp.ops.gpu import cuda_runtime

ON_GPU = os.environ.get("MPICOMP_TEST_GPU") == "1"
if ON_GPU and not extension.AVAILABLE:  # kernels are held against the oracle alone
    stand_in = SimpleNamespace(force_isa=lambda name: None, set_index_limit=lambda n: None)
    for name, module in (("cpu", oracle), ("_cpu", stand_in)):
        sys.modules[f"mpicomp.ops.{name}"] = module
        setattr(mpicomp.ops, name, module)

from mpicomp.ops import _cpu, cpu  # noqa: E402  (there is something to import now)

ISAS = ("avx512", "avx2", "baseline")


@pytest.fixture(scope="session")
def emulated_cuda():
    """mpicomp.ops.gpu, its kernels run on the CPU; with MPICOMP_TEST_GPU=1 on the GPU.

    With MPICOMP_CHECK_CUDA=FILE every access of theirs to memory is looked at (tests/sanitizers/sanitize.py sets it).
    """
    if ON_GPU:
        yield OnGPU()
        return
    previous = cuda_runtime.use(CheckedRuntime() if "MPICOMP_CHECK_CUDA" in os.environ else EmulatedRuntime())
    yield gpu
    cuda_runtime.use(previous)


def runs_kernels(item: pytest.Item) -> bool:
    """Return True if a test runs kernels that a GPU can run instead of the emulator."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    here = parameters.get("ops") == "cuda" or ("ops" not in parameters and "emulated_cuda" in item.fixturenames)
    return here and item.get_closest_marker("emulation") is None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if ON_GPU:
        left_out = [item for item in items if not runs_kernels(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if runs_kernels(item)]


class Reporter:
    """Prints a line of JSON per failed test and per file, so that a run that is cut short has reported what it did."""

    def __init__(self, config: pytest.Config) -> None:
        self._terminal = config.pluginmanager.get_plugin("terminalreporter")
        self._file, self._passed = "", 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        if file != self._file:
            self.finish()
            self._file = file
        if report.failed:
            self._print(case=report.nodeid, passed=False, error=f"{report.longreprtext.splitlines()[-1]}"[:300])
        self._passed += report.when == "call" and report.passed

    def finish(self) -> None:
        if self._passed:
            self._print(case=self._file, tests=self._passed, passed=True)
        self._passed = 0

    def pytest_sessionfinish(self) -> None:
        self.finish()

    def _print(self, **result: object) -> None:
        self._terminal.write(f"\n{json.dumps(result)}\n", flush=True)  # dots may stand on the line


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if ON_GPU and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reporter(config))


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


@pytest.fixture(params=[*ISAS, pytest.param("cuda", marks=pytest.mark.long("test_gpu_bench.py runs each kernel once"))])
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
    for home in (spans, gpu.base, gpu.collect, gpu.largest, gpu.selection, gpu.sketch, gpu.unions):
        monkeypatch.setattr(home, "index_dtype", lambda n: np.dtype(np.int64))
    yield
    _cpu.set_index_limit(2**31 - 1)
