"""Files of compiled kernels: compiled once per node, kept in memory if no folder takes them."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
import warnings
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace

import pytest

from mpicomp.ops.gpu import cuda_runtime, kernel_cache

CODE, NAMES = b"code\n\0of a device", {"f<int>": "_Z1fi"}
PROCESSES = 4
# A process that compiles for a while, and writes that to a file.
RANK = """
import sys, time
from pathlib import Path
from mpicomp.ops.gpu import kernel_cache

def compile_it():
    with Path({log!r}).open("a") as log:
        log.write("compiled\\n")
    time.sleep(1)
    return {code!r}, {names!r}

path, names = kernel_cache.binary("kernels", compile_it)
assert Path(path).read_bytes() == {code!r} and names == {names!r}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUPY_CACHE_IN_MEMORY", raising=False)
    kernel_cache.warn_once.cache_clear()
    return tmp_path / "cache"


def test_one_of_several_processes_compiles(folder, tmp_path):
    """The others wait for its file, and find it."""
    log = tmp_path / "log"
    rank = [sys.executable, "-c", RANK.format(log=str(log), code=CODE, names=NAMES)]
    started = [subprocess.Popen(rank) for _ in range(PROCESSES)]
    assert [one.wait(300) for one in started] == [0] * PROCESSES
    assert log.read_text().splitlines() == ["compiled"]
    assert sorted(path.suffix for path in folder.iterdir()) == [".cubin", ".json", ".lock"]


def test_a_process_that_ends_within_its_turn_leaves_it_to_the_next(folder):
    folder.mkdir()
    code = f"import os; from pathlib import Path; from mpicomp.ops.gpu import kernel_cache as k\n" \
           f"with k.turn(Path({str(folder / 'kernels.cubin')!r})): os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    assert kernel_cache.binary("kernels", lambda: (CODE, NAMES))[1] == NAMES


def test_nobody_waits_for_ever(folder, monkeypatch):
    """A process that hangs in its turn costs the others LONGEST_S."""
    monkeypatch.setattr(kernel_cache, "LONGEST_S", 0.1)
    folder.mkdir()
    with kernel_cache.turn(folder / "kernels.cubin"):
        start = time.monotonic()
        path, _ = kernel_cache.binary("kernels", lambda: (CODE, NAMES))
    assert Path(path).read_bytes() == CODE and time.monotonic() - start >= 0.1


def test_a_folder_that_takes_no_files_is_said_once(folder):
    """Kernels are then in memory, by a path as any other."""
    folder.write_text("a file, in which nothing can be written")
    with pytest.warns(RuntimeWarning, match="cannot be kept in .*: set CUPY_CACHE_DIR to a writable folder"):
        first = kernel_cache.binary("kernels", lambda: (CODE, NAMES))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = kernel_cache.binary("others", lambda: (b"other code", NAMES))
    assert [Path(path).read_bytes() for path, _ in (first, second)] == [CODE, b"other code"]
    assert first[0] != second[0] and first[1] == NAMES


def test_nothing_is_left_in_a_full_folder(folder, monkeypatch):
    """Every process of every job would leave some more."""
    def full(**options):
        file = NamedTemporaryFile(**options)  # noqa: SIM115 (the caller's block closes it)

        def write(content):
            raise OSError(errno.ENOSPC, "No space left on device")

        file.write = write
        return file

    monkeypatch.setattr(kernel_cache, "NamedTemporaryFile", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        path, _ = kernel_cache.binary("kernels", lambda: (CODE, NAMES))
    assert Path(path).read_bytes() == CODE
    assert [one.suffix for one in folder.iterdir()] == [".lock"]


def test_cupys_variable_for_no_files(folder, monkeypatch):
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    path, _ = kernel_cache.binary("kernels", lambda: (CODE, NAMES))
    assert Path(path).read_bytes() == CODE and not folder.exists()


def test_kernels_are_loaded_by_cupys_documented_classes(folder, monkeypatch):
    """The code is compiled without CuPy's -ftz=true, and loaded as a file."""
    asked, loaded = [], []

    def compile_using_nvrtc(code, options, architecture, filename, names):
        asked.append(options)
        return CODE, {name: f"_Z{name}" for name in names}

    class RawModule:
        def __init__(self, *, path):
            loaded.append(Path(path).read_bytes())

        def get_function(self, name):
            return name

    cuda = SimpleNamespace(
        Device=lambda: SimpleNamespace(compute_capability="90"), nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
        compiler=SimpleNamespace(compile_using_nvrtc=compile_using_nvrtc),
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda, RawModule=RawModule))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    for _ in range(2):  # the second time as another process
        functions = cuda_runtime.Runtime()._functions("reduce", 0)
        assert functions["combine<Add, float>"] == "_Zcombine<Add, float>"
    assert asked == [cuda_runtime.OPTIONS] and loaded == [CODE, CODE]
    assert not any("ftz" in option for option in asked[0])
