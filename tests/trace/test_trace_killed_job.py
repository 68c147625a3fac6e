"""One rank of a real MPI job is killed, then the whole job: every rank's records are recovered."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from progress import PATIENCE_S, until

from mpicomp.trace import open_trace, recover, validate

LAUNCHER = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
RANKS = 3

RANK = """
import os, sys, time
import numpy
from mpi4py import MPI
import mpicomp
comm = mpicomp.Comm(MPI.COMM_WORLD)
recorder = mpicomp.trace.Recorder(comm, sys.argv[1])
open(f"{sys.argv[1]}.pid{comm.rank}", "w").write(str(os.getpid()))
latest = numpy.memmap(f"{sys.argv[1]}.latest{comm.rank}", numpy.int64, "w+", shape=1)
for step in range(10**9):
    recorder.event("compute", recorder.now(), step=step)
    latest[0] = recorder.now()
    time.sleep(0.001)
"""


@pytest.mark.skipif(LAUNCHER is None, reason="no mpirun")
@pytest.mark.parametrize("whole_job", [False, True])
def test_a_killed_job_loses_at_most_the_last_second(tmp_path, whole_job):
    output = tmp_path / "run.h5"
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}  # fmt: skip
    job = subprocess.Popen(
        [LAUNCHER, "-n", str(RANKS), sys.executable, "-c", RANK, str(output)],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        pids = started(tmp_path, job)
        time.sleep(2.5 + np.random.default_rng().uniform(0, 1))
        victims = pids if whole_job else [pids[int(np.random.default_rng().integers(RANKS))]]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        job.wait(PATIENCE_S)  # the launcher ends the other ranks
    finally:
        job.kill()
    merged = recover(tmp_path / "run.h5.spool", output)
    assert not merged.complete and set(merged.status) == set(range(RANKS)) and validate(output) == []
    with open_trace(output) as trace:
        events = trace.events("rank", "step", "t_end")
    for rank in range(RANKS):
        own = events["rank"] == rank
        assert np.array_equal(events["step"][own], np.arange(own.sum()))
        latest = np.fromfile(f"{output}.latest{rank}", np.int64)[0]  # how far the rank came before it died
        assert latest - int(events["t_end"][own][-1]) < 2e9


def started(folder, job):
    """Process ids of the ranks, once all of them record."""
    files = [folder / f"run.h5.pid{rank}" for rank in range(RANKS)]
    until(lambda: all(file.exists() and file.read_text() for file in files), job)
    return [int(file.read_text()) for file in files]
