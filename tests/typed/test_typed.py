"""This package's types in another project's type checker: mypy --strict over a program that imports it."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is in mpicomp[dev]")
pytestmark = [pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import numpy as np
from mpi4py import MPI

import mpicomp

comm = mpicomp.Comm(MPI.COMM_WORLD)
x = np.ones(10, np.float32)
comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
reducer = mpicomp.Reducer(comm, "scalecom:chunk=112,beta=0.1")
mean = reducer.reduce_sparse(x)
sent: int = reducer.stats.bytes_sent
optimizer = mpicomp.optim.make("sgd:momentum=0.9", {"x": x})
names: list[str] = mpicomp.schemes.names()
with mpicomp.trace.Recorder(comm, "run.h5", title="a run") as recorder, recorder.region("forward"):
    recorder.event("compute", recorder.now(), nelem=10)
mpicomp.checkpoint.save(comm, "folder", 3, common={"model": {"x": x}})
try:
    mpicomp.Scheme.parse("topk:density=2")
except mpicomp.errors.InvalidArgument as error:
    print(error, mpicomp.__version__.upper())
"""
# Deliberate mistakes; a checker that sees no types reports none of them.
MISTAKES = {
    "comm.Allreduce(x, x, algorithm=3)": "arg-type",
    "reducer.stats.bytes_sent.upper()": "attr-defined",
    "mpicomp.Redcuer(comm, 'topk')": "attr-defined",
    "mpicomp.trace.Recorder(comm, 7)": "arg-type",
    "mpicomp.trace.sumary('run.h5')": "attr-defined",
    "mpicomp.schemes.names() + 1": "operator",
}


def project(folder: Path, text: str) -> str:
    """mypy's report on a program, in an environment with mpicomp installed as a package."""
    environment = folder / "environment"
    packages = environment / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=300)
    (packages / "mpicomp").symlink_to(ROOT / "mpicomp")
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))
    (folder / "program.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", folder / "cache", "--python-executable",
         environment / "bin" / "python", "--no-error-summary", "--show-error-codes", "program.py"],
        cwd=folder, env={name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")},
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_strict_project_checks_against_py_typed(tmp_path):
    """One run of the checker: the program is right but for the lines that are wrong on purpose."""
    lines = PROGRAM.splitlines()
    said = project(tmp_path, "\n".join([*lines, *MISTAKES]) + "\n")
    wanted = {(len(lines) + 1 + i, code) for i, code in enumerate(MISTAKES.values())}
    found = {(int(line.split(":")[1]), line.rsplit("[", 1)[-1].rstrip("]")) for line in said.splitlines()
             if " error: " in line}  # fmt: skip
    assert found == wanted, said
