"""Whole jobs over backend mpicomp: how they begin in each environment, and how they end if a rank fails or stalls."""

import re
import subprocess
import sys
from pathlib import Path

import needs_torch  # noqa: F401
import pytest
from progress import slowed
from run_mpi import job_command, job_environment, run_limited

SCRIPT = """
import os, sys, time, torch
from mpi4py import MPI
import mpicomp.torch
import torch.distributed as dist
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
torch.set_num_threads(1)
{before}
dist.init_process_group("mpicomp"{options})
x = torch.full((1000,), float(rank + 1))
{body}
dist.all_reduce(x)
print(f"the end {{x[0].item():g}}", flush=True)
{after}
"""
TORCHRUN = "os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR='localhost', MASTER_PORT='1')"
WELL = {
    "no variables": {},
    "variables of torchrun": {"before": TORCHRUN},  # where that port is another's
    "works that nobody waits for": {"after": "works = [dist.all_reduce(x, async_op=True) for _ in range(3)]"},
    "a hash store": {"before": "store = dist.HashStore()", "options": ", store=store, rank=rank, world_size=size"},
}


def start(tmp_path, size=2, before="", options="", body="", after="", **environment):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(before=before, options=options, body=body, after=after))
    command = [*job_command(Path(sys.executable), size), str(script)]
    return run_limited(command, job_environment(**environment), 400, tmp_path)


@pytest.mark.parametrize("name", WELL)
def test_jobs_that_end_well(tmp_path, name):
    code, output = start(tmp_path, **WELL[name])
    assert code == 0, output
    assert output.count("the end 3") == 2
    assert "Signal" not in output


BADLY = {
    "another world size": ({"before": "os.environ.update(WORLD_SIZE='4')"}, "expected rank 0 of 2, got rank 0 of 4"),
    "one rank's number": ({"before": "os.environ.update(RANK='0', WORLD_SIZE='2', MASTER_ADDR='localhost', "
                                     "MASTER_PORT='1')"}, "rank 1: .*expected rank 1 of 2, got rank 0 of 2"),
    "no number on one rank": ({"before": "if rank: os.environ.update(RANK='abc')"},
                              "rank 1: .*expected rank 1 of 2, got rank abc of 2"),
    "arguments": ({"options": ", rank=rank, world_size=3"}, "expected rank 0 of 2, got rank 0 of 3"),
    "an address that nobody knows": ({"before": "os.environ.update(MASTER_ADDR='no.such.host.invalid')"},
                                     "cannot reach rank 0's store at no.such.host.invalid: set MASTER_ADDR"),
    "an exception": ({"body": "if rank: raise KeyError('lost')"}, "rank 1 of 2 .*KeyError: 'lost'"),
    "unlike shapes": ({"body": "dist.all_reduce(torch.ones(4 + rank))"},
                      "Disagreement: ranks disagree on a collective"),
}


@pytest.mark.parametrize("name", BADLY)
def test_jobs_that_end_with_an_error(tmp_path, name):
    how, text = BADLY[name]
    code, output = start(tmp_path, **how)
    assert code not in (0, 124, 137), output
    assert "the end" not in output
    assert re.search(text, output), output


def test_the_watchdog_ends_a_rank_that_waits(tmp_path):
    seconds = f"{float(slowed(8)):g}"
    code, output = start(tmp_path, body="if rank: time.sleep(300)", MPICOMP_TIMEOUT=seconds)
    assert code == 70, output
    assert f"MPICOMP_TIMEOUT={seconds}" in output and "Allreduce" in output


def test_the_watchdog_ends_a_rank_that_waits_for_a_message(tmp_path):
    seconds = f"{float(slowed(8)):g}"
    body = "if rank: time.sleep(300)\nelse: dist.recv(x, 1)"
    code, output = start(tmp_path, body=body, MPICOMP_TIMEOUT=seconds)
    assert code == 70, output
    assert f"MPICOMP_TIMEOUT={seconds}" in output and "receive from rank 1" in output


def alone(code, **environment):
    command = ["timeout", "400", sys.executable, "-c", code]
    return subprocess.run(command, env=job_environment(**environment), capture_output=True, text=True)


def test_without_a_launcher():
    """One process is a group of one; one of several that MPI does not know is refused."""
    code = ("import mpicomp.torch, torch, torch.distributed as dist; dist.init_process_group('mpicomp'); "
            "x = torch.ones(2); dist.all_reduce(x); print(x.tolist())")
    done = alone(code)
    assert done.stdout == "[1.0, 1.0]\n", done.stderr
    done = alone(code, RANK="1", WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="1")
    assert done.returncode not in (0, 124)
    assert "backend mpicomp has MPI's ranks: expected rank 0 of 1, got rank 1 of 2" in done.stderr
    assert "start all processes by mpirun or srun" in done.stderr


def test_the_import_registers_and_opens_nothing():
    done = alone("import sys, mpicomp.torch, torch.distributed as dist; print(dist.Backend('mpicomp'), "
                 "'mpicomp.torch.process_group' in sys.modules, 'torch._dynamo' in sys.modules, dist.is_initialized())")
    assert done.stdout == "mpicomp False False False\n", done.stderr
