"""Which module serves which array."""

import os
import shutil
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

from mpicomp import ops as package
from mpicomp.errors import InvalidArgument
from mpicomp.ops import _cpu, cpu, ops_for, register
from mpicomp.ops import node_shared as compiled_shared
from mpicomp.ops import not_compiled as stand_ins
from mpicomp.ops.gpu import cuda_runtime


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)


def test_numpy_arrays_are_served_by_the_compiled_module():
    assert ops_for(np.zeros(3)) is cpu
    assert ops_for(np.zeros(3).view(np.memmap)) is cpu


@pytest.mark.parametrize("thing", [[1.0], 3, None, b"bytes"])
def test_other_things_are_refused(thing):
    with pytest.raises(InvalidArgument, match="expected an array of one of numpy, cupy"):
        ops_for(thing)


def test_register_serves_a_new_kind_of_array(monkeypatch):
    monkeypatch.setattr(package, "_HOMES", dict(package._HOMES))
    fake = type("ndarray", (), {"__module__": "fakecupy._core"})
    module = types.ModuleType("fake_ops")
    register("fakecupy", module)
    assert ops_for(fake()) is module
    package._FOUND.clear()


@pytest.fixture
def not_compiled(tmp_path):
    """Code that makes Python find a copy of the package without its extension."""
    there = tmp_path / "mpicomp"
    shutil.copytree(Path(package.__file__).parents[1], there, ignore=shutil.ignore_patterns("*.so", "apps"))
    return f"import sys; sys.path[0] = {str(tmp_path)!r}; "


def test_a_clone_that_was_not_compiled_says_so(tmp_path, not_compiled):
    said = python(not_compiled + "import numpy, mpicomp.ops as o; o.ops_for(numpy.zeros(1))").stderr
    expected = f"MissingExtra: mpicomp was imported from {tmp_path / 'mpicomp'}, where nothing is compiled for Python"
    assert expected in said


def test_the_oracle_needs_no_compiler(not_compiled):
    code = not_compiled + """
import numpy as np, mpicomp
from mpi4py import MPI
comm = mpicomp.Comm(MPI.COMM_WORLD)
x = comm.empty(5)
x[...] = 3
for name in mpicomp.allreduce.names():
    comm.Allreduce(MPI.IN_PLACE, x, algorithm=name)
mean = mpicomp.Reducer(comm, "topk:density=0.5").reduce({"a": x})["a"]
comm.Iallreduce(MPI.IN_PLACE, x).Wait()
comm.Free()
print(x.tolist(), mean.tolist(), 'mpicomp.ops._cpu' in sys.modules)
"""
    ended = python(code, MPICOMP_OPS="reference")
    assert "[3.0, 3.0, 3.0, 3.0, 3.0] [3.0, 3.0, 0.0, 0.0, 0.0] False" in ended.stdout, ended.stderr


def test_stand_ins_mirror_what_is_compiled():
    calls, stand_in = (shared.PlainCalls(None, None) for shared in (compiled_shared, stand_ins))
    assert [name for name in dir(calls) if not name.startswith("_") and not hasattr(stand_in, name)] == []
    assert [name for name in compiled_shared.__all__ if not hasattr(stand_ins, name)] == []


def test_environment_chooses_the_oracle():
    code = "import numpy, mpicomp.ops as o; print(o.ops_for(numpy.zeros(1)).__name__)"
    assert python(code, MPICOMP_OPS="reference").stdout.strip() == "mpicomp.ops.oracle"


def test_environment_chooses_the_instruction_set():
    code = "from mpicomp.ops import cpu; print(cpu.isa())"
    assert python(code, MPICOMP_ISA="baseline").stdout.strip() == "baseline"
    wrong = python(code, MPICOMP_ISA="sse9")
    assert wrong.returncode != 0
    assert "InvalidArgument: MPICOMP_ISA: instruction set must be one of avx512, avx2, baseline, got s" in wrong.stderr


def test_importing_ops_does_not_import_cupy():
    assert python("import mpicomp.ops.gpu, sys; sys.exit('cupy' in sys.modules)").returncode == 0


def test_missing_cupy_is_explained(monkeypatch):
    from mpicomp.errors import MissingExtra

    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mpicomp\[cuda13\]'"):
        _ = cuda_runtime.Runtime().xp


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """Stand-ins for CuPy's compiler and loader, without a device; returns the compiled files and their options."""
    compiled = []

    def compile_using_nvrtc(code, options, arch, filename, names):
        compiled.append((filename, options))
        return b"\x7fELF\n" + filename.encode(), {name: f"_Z{number}" for number, name in enumerate(names)}

    class RawModule:
        def __init__(self, *, path):
            self.binary = Path(path).read_bytes()

        def get_function(self, name):
            return self.binary, name

    cuda = types.ModuleType("cupy.cuda")
    cuda.Device = lambda: types.SimpleNamespace(compute_capability="90")
    cuda.compiler = types.SimpleNamespace(compile_using_nvrtc=compile_using_nvrtc)
    cuda.nvrtc = types.SimpleNamespace(getVersion=lambda: (13, 0))
    cuda.runtime = types.SimpleNamespace(getDevice=lambda: 0)
    cupy = types.ModuleType("cupy")
    cupy.cuda, cupy.RawModule = cuda, RawModule
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "not there yet"))
    return compiled


def test_kernels_are_compiled_once_for_all_processes(compiler, tmp_path):
    for _ in range(2):  # runtimes of two processes
        runtime = cuda_runtime.Runtime()
        for place, name in enumerate(cuda_runtime.KERNELS["moments"]):
            assert runtime.kernel("moments", name) == (b"\x7fELF\nmoments.cu", f"_Z{place}")
    assert compiler == [("moments.cu", cuda_runtime.OPTIONS)]
    assert not any("ftz" in option for option in cuda_runtime.OPTIONS)  # denormal numbers stay, as NVRTC has them
    assert len({path.stem for path in (tmp_path / "not there yet").iterdir()}) == 1


def test_other_options_are_compiled_anew(compiler, monkeypatch):
    options = cuda_runtime.OPTIONS
    assert options[:2] == ("--std=c++17", "--fmad=false")
    cuda_runtime.Runtime().kernel("moments", "sample<float>")
    monkeypatch.setattr(cuda_runtime, "OPTIONS", ("--std=c++17",))
    cuda_runtime.Runtime().kernel("moments", "sample<float>")
    assert [options for _, options in compiler] == [options, ("--std=c++17",)]


def another_thread_gets_on_during(work):
    """Return True if a thread that needs only the interpreter's lock runs during ``work()``, not just after it."""
    begin, seen = threading.Lock(), []
    begin.acquire()

    def wait():
        with begin:
            seen.append("there")

    thread = threading.Thread(target=wait)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # the lock is given up by whoever holds it, or not at all
    try:
        begin.release()
        work()
        during = bool(seen)
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    return during


def test_lock_is_released_during_kernels():
    x, y = np.ones((2, 20_000_000), np.float32)
    assert not any(another_thread_gets_on_during(x[:1_000_000].tolist) for _ in range(3))  # which keeps the lock
    assert any(another_thread_gets_on_during(lambda: _cpu.add(x, y)) for _ in range(50))  # at once, but on busy cores
