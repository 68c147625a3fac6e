"""Everything that must pass, stage by stage: what ``make test`` runs.

Each stage is a command that is killed if it prints nothing for its time limit. All stages run even after a failure, and
the last line counts them.
``python tests/run_all.py unit openmpi`` runs only the stages named.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import progress
from run_mpi import keep_apart

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "openmpi" / "bin" / "python"

# Folders that pytest leaves out of tests/ as a whole (conftest.py), and how their tests are run.
APART = {
    "mpi": "python tests/run_mpi.py", "pytorch": "python -m pytest tests/pytorch",
    "typed": "python -m pytest tests/typed", "cluster": "make test-cluster",
    "browser": "make test-browser",
}  # fmt: skip
# name -> (what it shows, command, seconds in which it must print something; None: it has a limit of its own)
STAGES = {
    "lint": ("ruff", [PYTHON, "-m", "ruff", "check", "."], 600),
    "types": ("mypy --strict over the whole package", [PYTHON, "tests/check_types.py"], 3600),
    "unit": (
        "operations, schemes, trace, command line; CUDA sources compiled and executed on the CPU",
        [PYTHON, "-m", "pytest", "-q", "tests",
         "--numprocesses=auto", "--maxprocesses=4", "--dist=loadfile"],
        1800,
    ),
    "docs": ("the documentation builds without a warning; the notebook runs",
             [PYTHON, "-m", "sphinx", "-E", "-W", "--keep-going", "-q", "-b", "html", "docs", "out/docs"], 3600),
    # A process of its own: MPI starts in it, and what that leaves in the environment would mislead launchers' tests.
    "pytorch": ("PyTorch models through the optimizer's wrapper",
                [PYTHON, "-m", "pytest", "-q", "tests/pytorch"], 1800),
    "openmpi": ("collectives, reducer, trace in 1 to 8 ranks of Open MPI",
                [PYTHON, "tests/run_mpi.py", "--mpi", "openmpi"], None),
    "mpich": ("the same in 1 to 3 ranks of MPICH", [PYTHON, "tests/run_mpi.py", "--mpi", "mpich"], None),
}


def run(name: str) -> bool:
    """One stage, its output passed through; whether it passed."""
    shows, command, limit = STAGES[name]
    print(f"\n== {name}: {shows}", flush=True)
    start = time.monotonic()
    code = run_printing([str(word) for word in command], limit or math.inf)
    if code is None:
        print(f"{name} printed nothing for {limit} s and was killed")
    verdict = "passed" if code == 0 else f"FAILED (exit code {code})"
    print(f"== {name} {verdict} after {time.monotonic() - start:.0f} s", flush=True)
    return code == 0


def run_printing(command: list[str], limit: float) -> int | None:
    """Run a command and pass its output through; its exit code, None if killed after ``limit`` silent seconds."""
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, env=environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    printed = 0

    def pass_through() -> None:
        nonlocal printed
        while data := os.read(process.stdout.fileno(), 1 << 16):
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
        reader.join(timeout=10)  # a process that it left may hold the pipe open
    return code


def environment() -> dict[str, str]:
    """Threads of BLAS would fight the ranks for the cores; what a stage prints counts as progress at once."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def main(names: list[str]) -> int:
    unknown = set(names) - set(STAGES)
    if unknown:
        print(f"unknown stages {', '.join(sorted(unknown))}; choose from {', '.join(STAGES)}", file=sys.stderr)
        return 2
    keep_apart()
    results = {name: run(name) for name in names or STAGES}
    failed = [name for name, passed in results.items() if not passed]
    if failed:
        print(f"\nfailed stages: {', '.join(failed)}")
    print(f"\nstages: {len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
