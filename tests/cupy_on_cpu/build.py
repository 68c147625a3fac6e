"""Runs a command with the real CuPy on a machine without a GPU.

    python tests/cupy_on_cpu/build.py COMMAND [ARGUMENT ...]

Between our Python and a GPU is CuPy: the arguments it accepts and refuses, its results, the order in which it queues
work, its waits. Here CuPy is its own release, but for one module: ``runtime``, which links CUDA's runtime, is compiled
again from CuPy's source, with runtime.cpp and streams.cpp in CUDA's place. The driver, NVRTC, cuBLAS and cuSOLVER are
shared libraries to a release, and ours are driver.cpp, nvrtc.cpp and linear_algebra.cpp. Kernels, CuPy's own among
them, are compiled by g++ (compile_kernel.py) and run as tests/ops runs ours. Sorting is thrust.py, random numbers are
random_numbers.py.
Not there: NCCL, CUB (CuPy's own reductions run in its place), memory that is managed or allocated on streams, graphs.

The device is as late as CUDA allows, so that a missing wait shows, and its memory is closed to the host (machine.cpp).
EMULATED_CUDA=now makes it prompt, EMULATED_CUDA_DEVICES=2 gives two. Times mean nothing, but for those of the host with
EMULATED_CUDA=idle, where kernels do nothing (tests/gpu/host_time.py).

The first run fetches CuPy's release and source, Cython and CUDA's headers from the package index and builds, in a
minute, in .cache/cupy_on_cpu. Exit code 77: it cannot be built here, and why.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".cache" / "cupy_on_cpu"
CUPY = "14.2.0"
CYTHON = "3.2.4"  # that CuPy's release was made with: its modules look into each other
TOOLS = (f"Cython=={CYTHON}", "nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88",
         "nvidia-cuda-profiler-api==13.0.85")  # fmt: skip
REPLACED = {"cupy/cuda/thrust": "thrust.py", "cupy/random/_generator_api": "random_numbers.py"}
LIBRARIES = ("libcudart.so.13", "libcuda.so.1", "libnvrtc.so.13", "libcublas.so.13", "libcublasLt.so.13",
             "libcusolver.so.12", "libcusparse.so.12", "libnvJitLink.so.13")  # all is in the first
CONSTANTS = f"CUPY_CUDA_VERSION=13000,CUPY_HIP_VERSION=0,CUPY_USE_CUDA_PYTHON=False,CUPY_CYTHON_VERSION={CYTHON}"
NOT_SUPPORTED = {"cuda": 801, "cublas": 15, "cusolver": 9, "cusparse": 10}  # the answers of functions left out
SKIPPED = 77


class Unavailable(Exception):
    """A component of this CuPy is unavailable."""


def built() -> Path:
    """Return the folder with CuPy and our libraries; build it if it is missing or made of other files."""
    sources = [Path(__file__), HERE / "compile_kernel.py", *sorted(HERE.rglob("*.cpp")), *sorted(HERE.rglob("*.h")),
               *(HERE / ours for ours in REPLACED.values())]  # fmt: skip
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    site, mark = CACHE / "site", CACHE / "built"
    if mark.exists() and mark.read_text() == key:
        return site
    mark.unlink(missing_ok=True)
    if shutil.which("g++") is None:
        raise Unavailable("g++ is missing")
    try:
        fetch(site)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(str(error)) from error
    shutil.rmtree(CACHE / "kernels", ignore_errors=True)
    for module in (*REPLACED, "cupy_backends/cuda/api/runtime"):
        for old in site.glob(f"{module}.*.so"):
            old.unlink()
    for module, ours in REPLACED.items():
        shutil.copy(HERE / ours, site / f"{module}.py")
    compile_runtime(site)
    mark.write_text(key)
    return site


def fetch(site: Path) -> None:
    """CuPy's release into ``site``; Cython, CUDA's headers and CuPy's source beside it. Once."""
    if not (CACHE / "fetched").exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--no-compile", "--target"]
        run([*pip, str(CACHE / "tools"), *TOOLS])
        run([*pip, str(site), f"cupy-cuda13x=={CUPY}", "cuda-pathfinder==1.*,>=1.3.4"])
        with urllib.request.urlopen("https://pypi.org/simple/cupy/", timeout=60) as answer:
            page = answer.read().decode()
        url = re.search(rf'href="([^"#]+/cupy-{re.escape(CUPY)}\.tar\.gz)', page)[1]
        archive, _ = urllib.request.urlretrieve(url)
        with tarfile.open(archive) as packed:
            packed.extractall(CACHE, filter="data")
        (CACHE / "fetched").touch()


def compile_runtime(site: Path) -> None:
    """CuPy's module ``runtime``, on our libraries, which lie beside it under CUDA's names."""
    api, source = site / "cupy_backends" / "cuda" / "api", CACHE / f"cupy-{CUPY}"
    include = [f"-I{CACHE / 'tools' / 'nvidia' / 'cu13' / 'include'}", f"-I{source / 'cupy_backends' / 'cuda' / 'api'}"]
    compiler = ["g++", "-std=c++17", "-O1", "-w", "-fPIC", *include]
    made, module, wanted = (CACHE / name for name in ("runtime.cpp", "runtime.o", "missing.cpp"))
    if not module.exists():
        run([sys.executable, "-m", "cython", "--cplus", "-3", "-X", "binding=False", "-E", CONSTANTS, "-o", str(made),
             "cupy_backends/cuda/api/runtime.pyx"], cwd=source, env={**os.environ, "PYTHONPATH": str(CACHE / "tools")})
        run([*compiler, f"-I{sysconfig.get_path('include')}", "-c", str(made), "-o", str(module)])
    ours = [str(path) for path in HERE.glob("*.cpp")]
    libraries = [str(api / name) for name in LIBRARIES]
    shared = [*compiler, "-shared", f'-DCOMPILER="{HERE / "compile_kernel.py"}"', "-Wl,-rpath,$ORIGIN"]
    callers = [module, *(site / "cupy_backends" / "cuda" / "libs").glob("cu[bs]*.so")]
    wanted.write_text("")
    for _ in range(2):  # the second time with what the first one lacks
        run([*shared, f"-Wl,-soname,{LIBRARIES[0]}", *ours, str(wanted), "-o", libraries[0]])
        lacking = sorted(set().union(*(names(one, "U") for one in callers)) - names(Path(libraries[0]), "T"))
        wanted.write_text("".join(f'extern "C" int {one}() {{ return {not_supported(one)}; }}\n' for one in lacking))
    for name, library in zip(LIBRARIES[1:], libraries[1:], strict=True):
        (CACHE / "version").write_text(f"{name} {{ }};\n")  # that the release asks for
        run([*shared, f"-Wl,-soname,{name},--no-as-needed,--version-script={CACHE / 'version'}",
             "-x", "c++", "/dev/null", "-x", "none", libraries[0], "-o", library])
    target = api / f"runtime{sysconfig.get_config_var('EXT_SUFFIX')}"
    run([*shared, str(module), "-Wl,--no-as-needed", *libraries, "-o", str(target)])


def names(binary: Path, kind: str) -> set[str]:
    """CUDA's functions that a binary defines (``T``) or lacks (``U``)."""
    table = subprocess.run(["nm", "-D" if ".so" in binary.name else "-g", str(binary)], capture_output=True, text=True,
                           check=True).stdout  # fmt: skip
    found = {line.split()[-1].partition("@")[0] for line in table.splitlines() if line.split()[-2] == kind}
    return {name for name in found if name.startswith(tuple(NOT_SUPPORTED))}


def not_supported(name: str) -> int:
    return next(code for prefix, code in NOT_SUPPORTED.items() if name.startswith(prefix))


def environment() -> dict[str, str]:
    """CuPy compiles and remembers kernels in our folder, and leaves CUB alone."""
    paths = [str(built()), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "EMULATED_CUDA_PYTHON": sys.executable,
            "CUPY_CACHE_DIR": str(CACHE / "kernels"), "CUPY_ACCELERATORS": ""}


def run(command: list[str], **options) -> None:
    subprocess.run(command, check=True, timeout=600, **options)


def main(command: list[str]) -> int:
    try:
        there = environment()
    except Unavailable as error:
        print(f"CuPy cannot be built for this machine without a GPU: {error}", file=sys.stderr)
        return SKIPPED
    return subprocess.run(command or [sys.executable], env=there, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
