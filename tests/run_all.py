"""Run the stages of ``make test``, or of ``make test-all`` with ``--long``.

    python tests/run_all.py [--long] [STAGE ...]

A stage is a command. It is killed if it prints nothing for its time limit. All stages run even after a failure, and the
last line counts them. Stages that are named run whichever of the two they belong to.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import progress
from run_mpi import keep_apart

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "openmpi" / "bin" / "python"
PYTEST = (PYTHON, "-m", "pytest", "-q")
WORKERS = ("--numprocesses=4", "--dist=loadfile")  # many tests wait
QUICK, LONG = ("-m", "not long"), ("-m", "long")
# Long tests of CUDA sources that the stage `cuda` leaves out; it runs the others, with checks.
UNCHECKED = "not cuda or cuda_compiles or test_large or products_of_integers"
COMMUNICATION = ("allreduce", "bench", "checkpoint", "comm", "reducer", "trace")

# Folders that pytest leaves out of tests/ as a whole (conftest.py), and how their tests are run.
APART = {
    "mpi": "python tests/run_mpi.py", "pytorch": "python -m pytest tests/pytorch",
    "typed": "python -m pytest tests/typed", "cluster": "make test-cluster",
    "browser": "make test-browser",
}  # fmt: skip


class Stage(NamedTuple):
    """A command of the test run."""

    shows: str
    command: tuple[Path | str, ...]
    limit: float = 1800  # seconds in which it must print something
    long: bool = False  # belongs to ``make test-all``, not to ``make test``


def _mpi(mpi: str, *options: str) -> tuple[Path | str, ...]:
    return (PYTHON, "tests/run_mpi.py", "--mpi", mpi, *options)  # has a limit of its own, on tests


STAGES = {
    "lint": Stage("ruff", (PYTHON, "-m", "ruff", "check", "."), 600),
    "types": Stage("mypy --strict over the whole package", (PYTHON, "tests/check_types.py"), 3600),
    "unit": Stage("all that one process can show", (*PYTEST, "tests", *WORKERS, *QUICK)),
    "docs": Stage("the documentation builds without a warning; the notebook runs",
                  (PYTHON, "-m", "sphinx", "-E", "-W", "--keep-going", "-q", "-b", "html", "docs", "out/docs"), 3600),
    # In a process of its own: MPI starts in it and sets variables that would mislead tests of launchers.
    "pytorch": Stage("PyTorch models through the optimizer's wrapper", (*PYTEST, "tests/pytorch")),
    "openmpi": Stage("collectives, reducer, trace in 1 to 3 ranks of Open MPI",
                     _mpi("openmpi", "--sizes", "1,2,3", *QUICK), math.inf),
    "mpich": Stage("the same in 2 ranks of MPICH", _mpi("mpich", "--sizes", "2", *QUICK), math.inf),
    "unit-long": Stage("CUDA sources compile; whole jobs", (*PYTEST, "tests", *WORKERS, *LONG, "-k", UNCHECKED),
                       long=True),
    "cuda": Stage("CUDA kernels on the CPU, every access to memory checked",
                  (PYTHON, "tests/sanitizers/sanitize.py", "cuda"), long=True),
    "openmpi-long": Stage("long tests in 1 to 3 ranks of Open MPI",
                          _mpi("openmpi", "--sizes", "1,2,3", *LONG), math.inf, long=True),
    "openmpi-sizes": Stage("quick tests in 4, 5 and 8 ranks of Open MPI",
                           _mpi("openmpi", "--sizes", "4,5,8", *QUICK), math.inf, long=True),
    # MPICH has two ranks for all tests (stage mpich), and more sizes where tests call MPI themselves.
    "mpich-sizes": Stage("tests of communication in 1 and 3 ranks of MPICH",
                         _mpi("mpich", "--sizes", "1,3", *(f"tests/mpi/{room}" for room in COMMUNICATION)),
                         math.inf, long=True),
}  # fmt: skip


def run(name: str) -> bool:
    """Run one stage and pass its output through; return if it passed."""
    stage = STAGES[name]
    print(f"\n== {name}: {stage.shows}", flush=True)
    start = time.monotonic()
    code = run_printing([str(word) for word in stage.command], stage.limit)
    if code is None:
        print(f"{name} printed nothing for {stage.limit:.0f} s and was killed")
    verdict = "passed" if code == 0 else f"FAILED (exit code {code})"
    print(f"== {name} {verdict} after {time.monotonic() - start:.0f} s", flush=True)
    return code == 0


def run_printing(command: list[str], limit: float) -> int | None:
    """Run a command, pass its output through, return its exit code; None if killed after ``limit`` silent seconds."""
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, env=environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    assert process.stdout is not None
    output, printed = process.stdout.fileno(), 0

    def pass_through() -> None:
        nonlocal printed
        while data := os.read(output, 1 << 16):
            printed += len(data)
            sys.stdout.buffer.write(data)
            sys.stdout.flush()

    reader = threading.Thread(target=pass_through, daemon=True)
    reader.start()
    code = None
    try:
        code = progress.wait(process, lambda: printed, limit)
    finally:
        if code is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        reader.join(timeout=10)  # an orphan of the command may hold the pipe open
    return code


def environment() -> dict[str, str]:
    """Keep threads of BLAS from taking the ranks' cores, and let output count as progress at once."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def main() -> int:
    """Run the stages of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="the stages of `make test-all`")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(STAGES))
    options = parser.parse_args()
    if unknown := set(options.stages) - set(STAGES):
        parser.error(f"unknown stages {', '.join(sorted(unknown))}; choose from {', '.join(STAGES)}")
    keep_apart()
    names = options.stages or [name for name, stage in STAGES.items() if stage.long == options.long]
    failed = [name for name in names if not run(name)]
    if failed:
        print(f"\nfailed stages: {', '.join(failed)}")
    print(f"\nstages: {len(names) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
