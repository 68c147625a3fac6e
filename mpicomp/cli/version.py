"""``mpicomp --version``: the versions of this package, its dependencies, MPI and CUDA."""

from __future__ import annotations

import json
import platform
import subprocess

import click

from .._util.subprocesses import python
from .._util.versions import version_of
from .._version import __version__

PACKAGES = ("numpy", "mpi4py", "h5py", "cupy-cuda12x", "cupy-cuda13x", "cupy", "torch")
ASK_S = 30.0  # a slow file system takes seconds to load MPI for the first time

# Runs in a child process: a broken MPI ends the process that loads it, and nothing of it stays in this one. MPI is
# loaded, not started: a login node of a cluster may not allow starting it.
ASK = """
import ctypes, json, sys
found = {}
try:
    import mpi4py
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI
    text = MPI.Get_library_version().split("\\n")[0].split(",")[0].strip("\\0")
    standard = "{}.{}".format(*MPI.Get_version())
    found["MPI"] = f"{' '.join(text.split())}, standard {standard}"
except Exception as error:
    found["MPI"] = f"cannot be loaded: {error}"
try:
    from mpicomp.ops import _cpu
    found["extension"] = f"compiled, {_cpu.isa()}"
except Exception as error:
    found["extension"] = f"cannot be loaded: {error}"
try:
    version, driver = ctypes.c_int(), ctypes.CDLL("libcuda.so.1")
    failed = driver.cuDriverGetVersion(ctypes.byref(version))
    found["CUDA"] = f"driver error {failed}" if failed else (
        f"driver for CUDA {version.value // 1000}.{version.value % 1000 // 10}")
except OSError:
    found["CUDA"] = "no driver"
print(json.dumps(found))
"""


def show(ctx: click.Context, _option: click.Parameter, asked: bool) -> None:
    """Print the version, then the facts that need a child process, and end."""
    if not asked or ctx.resilient_parsing:
        return
    click.echo(f"mpicomp, version {__version__}")
    installed = [f"{name} {version}" for name in PACKAGES if (version := version_of(name))]
    click.echo(f"Python {platform.python_version()}, {', '.join(installed)}")
    for name, value in loaded().items():
        click.echo(f"{name}: {value}")
    ctx.exit()


def loaded() -> dict[str, str]:
    """The versions that MPI, the extension and CUDA report when they are loaded."""
    try:
        done = subprocess.run(python(ASK), capture_output=True, text=True, timeout=ASK_S)
    except subprocess.TimeoutExpired:
        return {"MPI": f"not loaded within {ASK_S:g} s"}
    try:
        found: dict[str, str] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        said = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        return {"MPI": f"loading it ended Python with status {done.returncode}: {said[0]}"}
    return found
