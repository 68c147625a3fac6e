"""Programs that end without waiting for the all-reduces that they started."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from run_mpi import job_command, job_environment, run_limited

RANKS = 2
SCRIPT = """
import sys, mpi4py
mpi4py.rc.thread_level = sys.argv[1]
import numpy as np, mpicomp
from mpi4py import MPI
from mpicomp.comm import nonblocking
comm = mpicomp.Comm(MPI.COMM_WORLD)
def start():
    return comm.Iallreduce(MPI.IN_PLACE, np.ones(300_000, np.float32))
{body}
"""
LEFT = r"\[mpicomp\] rank \d of 2 .*: the program ends with \d+ all-reduce\(s\) in flight"


def end(tmp_path, threads, body, **environment):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(body=body))
    command = [*job_command(Path(sys.executable), RANKS), str(script), threads]
    return run_limited(command, job_environment(**environment), 400, tmp_path)


@pytest.mark.parametrize("threads", ["multiple", "single"])
def test_they_complete_with_a_warning(tmp_path, threads):
    code, output = end(tmp_path, threads, "for _ in range(20): start()")
    assert code == 0, output
    assert re.search(LEFT, output) or threads == "multiple", output  # a thread may have been fast


@pytest.mark.parametrize("threads", ["multiple", "single"])
def test_buffers_last_until_the_wait(tmp_path, threads):
    code, output = end(tmp_path, threads, "requests = [start() for _ in range(20)]\n"
                       "for request in requests: request.Wait()\nprint('the end')")  # fmt: skip
    assert code == 0, output
    assert output.count("the end") == RANKS and "[mpicomp]" not in output


def test_one_that_other_ranks_have_not_started_ends_the_job(tmp_path):
    body = "nonblocking.EXIT_S = 2\nstart().Wait()\nif comm.rank == 0: start()"
    code, output = end(tmp_path, "single", body, MPICOMP_TIMEOUT="0")
    assert code not in (0, None), output
    assert re.search(r"rank 0 of 2 .*: all-reduces in flight were not complete after 2 s", output), output


def test_an_uncaught_exception_does_not_wait(tmp_path):
    body = "start().Wait()\nif comm.rank == 0: start(); raise KeyError('lost')\nstart().Wait()"
    code, output = end(tmp_path, "multiple", body)
    assert code not in (0, None), output
    assert "KeyError: 'lost'" in output and "in flight" not in output
