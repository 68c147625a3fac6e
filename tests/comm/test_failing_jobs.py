"""Whole jobs: how they end when a rank fails, and what happens under a launcher of another MPI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from run_mpi import job_command, job_environment, run_limited

SCRIPT = """
import sys, numpy as np, mpicomp
from mpi4py import MPI
comm = mpicomp.Comm(MPI.COMM_WORLD)
{body}
comm.Allreduce(MPI.IN_PLACE, np.ones(10))
print("the end", flush=True)
"""
FAILURES = {
    "exception": ("if comm.rank == 1: raise KeyError('lost')", r"rank 1 of 2 \(host .+, pid \d+\): KeyError: 'lost'"),
    "interrupt": ("if comm.rank == 1: raise KeyboardInterrupt", r"rank 1 of 2 .*KeyboardInterrupt"),
    "refused buffer": (
        "comm.Allreduce(MPI.IN_PLACE, np.ones((2, 3)).T if comm.rank else np.ones((3, 2)))",
        r"BufferRefused: rank 1: recvbuf must be contiguous in C order",
    ),
    "other count": (
        "comm.Allreduce(MPI.IN_PLACE, np.ones(5 + comm.rank))",
        r"Disagreement: ranks disagree on a collective. rank 0: .* 5 elements.*; rank 1: .* 6 elements",
    ),
}


def start(tmp_path, body, size=2, **environment):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(body=body))
    command = [*job_command(Path(sys.executable), size), str(script)]
    return run_limited(command, job_environment(**environment), 400, tmp_path)


def test_a_good_job_ends_well(tmp_path):
    code, output = start(tmp_path, "")
    assert code == 0
    assert output.count("the end") == 2


LEAVING = {
    "sys.exit(3)": "if comm.rank == 1: sys.exit(3)",
    "sys.exit()": "if comm.rank == 1: sys.exit()",
    "MPI.Finalize()": "if comm.rank == 1: MPI.Finalize()",
    "another rank than a neighbour of all": "if comm.rank == 2: sys.exit(3)",
    "in a loop": "for i in range(200 if comm.rank == 1 else 300): comm.Allreduce(MPI.IN_PLACE, np.ones(10))\n"
                 "if comm.rank == 1: sys.exit(3)",
    "of mpi4py": "if comm.rank == 1: sys.exit(3)\ncomm.Barrier()",
}  # fmt: skip


FIRST, *OTHERS = LEAVING
WAYS = [FIRST, *(pytest.param(name, marks=pytest.mark.long("another way to end")) for name in OTHERS)]


@pytest.mark.parametrize("name", WAYS)
def test_a_rank_that_ends_while_others_wait_for_it(tmp_path, name):
    """With any exit code the job ends long before MPICOMP_TIMEOUT."""
    size = 4 if "neighbour" in name else 2
    code, output = start(tmp_path, LEAVING[name], size)
    assert code not in (0, None), output
    left = 2 if size == 4 else 1
    said = rf"is in #\d+ .*, but rank {left} of this communicator has ended after #\d+; stopping all ranks"
    assert re.search(said, output), output
    assert "the end\n" not in output


def test_after_mpi_is_finalized_a_communicator_is_refused(tmp_path):
    """What runs before MPI ends has run by then."""
    body = ("from mpicomp.comm.job import before_finalize\n"
            "before_finalize(lambda: print('finalized:', MPI.Is_finalized(), file=sys.stderr))\n"
            "MPI.Finalize(); mpicomp.Comm(MPI.COMM_WORLD)")  # fmt: skip
    code, output = start(tmp_path, body, 1)
    assert code not in (0, None), output
    assert "MpicompError: Comm needs MPI initialized and not finalized: call MPI.Init()" in output, output
    assert output.index("finalized: False") < output.index("MpicompError") < output.index("finalized: True")


BESIDE = {
    "work of their own": "if comm.rank == 1: sys.exit(0)\ntime.sleep(9); sys.exit(0)",
    "a call that it has done its part of": (
        "if comm.rank == 2: time.sleep(9)\ncomm.Reduce(np.ones(3), np.ones(3), root=0)\n"
        "sys.exit(0)"
    ),
    "mpi4py's own calls after one that broke": (
        "if comm.rank == 1: comm._engine.link.leave('rank 1', 'KeyError'); time.sleep(9)\ncomm.Barrier()\nsys.exit(0)"
    ),
    "messages that it had no part in": (
        "others = {1 - comm.rank: 8} if comm.rank < 2 else {}\n"
        "if others: comm.send_and_receive({1 - comm.rank: np.ones(1)}, others, np.ones(1))\n"
        "if comm.rank == 1: time.sleep(9)\ncomm.Reduce(np.ones(3), np.ones(3), root=0)\n"
        "sys.exit(0)"
    ),
}


@pytest.mark.long("ranks work for ten seconds beside one that left")
@pytest.mark.parametrize("name", list(BESIDE))
def test_a_rank_may_end_while_others_do_without_it(tmp_path, name):
    code, output = start(tmp_path, "import time\n" + BESIDE[name], 3)
    assert code == 0, output
    assert "[mpicomp]" not in output


def test_a_rank_that_leaves_a_call_of_mpi_in_the_middle(tmp_path):
    """The others cannot hear of it there, but their watchdogs do."""
    body = (
        "import time\nfor _ in range(80): comm.Allreduce(MPI.IN_PLACE, np.ones(10))\n"
        "if comm.rank == 1: comm._engine.link.leave('rank 1', 'KeyboardInterrupt'); time.sleep(300)\n"
        "comm.Allreduce(MPI.IN_PLACE, np.ones(10))"
    )
    code, output = start(tmp_path, body, MPICOMP_CHECK="0")
    assert code not in (0, None), output
    said = r"is in #81 Allreduce .*, but rank 1 of this communicator left a call in the middle"
    assert re.search(said, output), output


@pytest.mark.parametrize("name", list(FAILURES))
def test_a_failing_rank_ends_the_job(tmp_path, name):
    body, text = FAILURES[name]
    code, output = start(tmp_path, body)
    assert code not in (0, None), output
    assert re.search(text, output), output
    assert "[mpicomp] rank" in output
    assert "the end" not in output


def test_a_rank_whose_operations_cannot_be_loaded_ends_the_job(tmp_path):
    """The others wait for it in ``Comm``."""
    script = tmp_path / "script.py"
    script.write_text("import sys; from mpi4py import MPI\n"
                      "if MPI.COMM_WORLD.rank == 1: sys.modules['mpicomp.ops._cpu'] = None\n"
                      "import mpicomp; mpicomp.Comm(MPI.COMM_WORLD)\n")
    code, output = run_limited([*job_command(Path(sys.executable), 2), str(script)], job_environment(), 400, tmp_path)
    assert code not in (0, None), output
    assert re.search(r"rank 1 of 2 .*MissingExtra: mpicomp was imported from", output), output


def test_an_instruction_set_that_one_rank_cannot_have(tmp_path):
    """Whatever of the package is imported first, all ranks get the error where they make a communicator."""
    script = tmp_path / "script.py"
    script.write_text("import os; from mpi4py import MPI\n"
                      "if MPI.COMM_WORLD.rank == 1: os.environ['MPICOMP_ISA'] = 'nonsense'\n"
                      "from mpicomp.reducer.reducer import Reducer\n"
                      "import mpicomp\n"
                      "try: mpicomp.Comm(MPI.COMM_WORLD)\n"
                      "except mpicomp.errors.InvalidArgument as error: print(error)\n")
    code, output = run_limited([*job_command(Path(sys.executable), 2), str(script)], job_environment(), 400, tmp_path)
    assert code == 0, output
    assert output.count("rank 1: MPICOMP_ISA: instruction set must be one of") == 2, output


@pytest.mark.parametrize("owner", ["del message", "pass"])
def test_a_message_that_is_not_complete_at_the_end(tmp_path, owner):
    """MPI goes on sending it while it is finalized, after Python has freed everything else."""
    body = (
        "from mpicomp.comm.point_to_point import PointToPoint\n"
        "both, long = PointToPoint(comm), np.ones(50_000_000, np.uint8)\n"
        "message = both.recv(long, 0, 0) if comm.rank else both.send(long, 1, 0)\n"
        f"del long\n{owner}"
    )
    code, output = start(tmp_path, body)
    assert code == 0 and output.count("the end") == 2, output


def alone(program, **environment):
    """One process without a launcher, in an environment cleaned of theirs."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_COMM", "PMI_", "PMIX_", "SLURM_"))}
    return subprocess.run(
        [sys.executable, "-c", program], env={**clean, **environment}, capture_output=True, text=True, timeout=300
    )


MAKE = "import mpicomp; from mpi4py import MPI; mpicomp.Comm(MPI.COMM_WORLD); print('made')"
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}


def test_alone_on_purpose():
    for environment in ({}, {"SLURM_NTASKS": "4"}, {**SLURM, "MPICOMP_ALLOW_SINGLETON": "1"}):
        assert "made" in alone(MAKE, **environment).stdout


def test_alone_by_mistake():
    result = alone(MAKE, **SLURM)
    assert result.returncode != 0
    assert "rank 0 of 1, but Slurm's srun started 4 (SLURM_STEP_NUM_TASKS=4)" in result.stderr
    assert "srun --mpi=pmix" in result.stderr


@pytest.mark.parametrize(
    "environment",
    [
        {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "0"},
        {"PMI_SIZE": "3", "PMI_RANK": "0"},
        {"SLURM_NTASKS": "3", "SLURM_PROCID": "2"},
        {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "0"},
        {"PMIX_RANK": "2"},
    ],
    ids=str,
)
def test_every_launcher_s_mismatch_is_seen(environment):
    # With the true rank Open MPI would look for its launcher; the question is what our function reads.
    program = "from mpi4py import MPI; import os, mpicomp; os.environ.update({}); print(mpicomp.launcher_mismatch())"
    result = alone(program.format(environment))
    assert re.search(r"rank 0 of 1, but .+ started (at least )?3 \(", result.stdout), result
    (variable, value), *_ = [item for item in environment.items() if f"({item[0]}=" in result.stdout]
    assert f"({variable}={value})" in result.stdout


INTERACTIVE = {"SLURM_NTASKS": "3", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}


@pytest.mark.parametrize("slurm", [{"SLURM_NTASKS": "3", "SLURM_PROCID": "0"}, INTERACTIVE], ids=["batch", "salloc"])
def test_no_launcher_no_mismatch(slurm):
    ordinary = {**slurm, "PMIX_RANK": "0", "PMI_SIZE": "1", "PMI_RANK": "x"}
    program = f"from mpi4py import MPI; import os, mpicomp; os.environ.update({ordinary}); " \
        "print(mpicomp.launcher_mismatch())"
    assert alone(program).stdout.strip() == "None"


def test_import_starts_no_mpi():
    modules = "sys, mpicomp, mpicomp.allreduce, mpicomp.allreduce.native, mpicomp._util.partition"
    program = f"import {modules}; print('mpi4py' in sys.modules)"
    assert alone(program).stdout.strip() == "False"
