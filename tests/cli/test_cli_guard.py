"""When one rank fails, is interrupted or leaves, the whole job ends: soon, with its exit code, and with a word."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import click
import pytest
from launching import run

from mpicomp.cli import guard
from mpicomp.cli.guard import Guard
from mpicomp.cli.outcome import Interrupted
from mpicomp.trace import open_trace, recover

LAST = "{last}"  # the last rank of the job


@pytest.mark.parametrize(
    ("how", "who", "code", "text"),
    [
        ("refuse", LAST, 1, "[rank {last} {host}] Error: density must be in (0, 1], got 1.5"),
        ("crash", LAST, 1, "ZeroDivisionError: a bug"),
        ("leave0", LAST, 73, "[rank {last} {host}] Error: this rank is through, other ranks still run after "),
        ("interrupt", LAST, 130, "[rank {last} {host}] Interrupted; all ranks stop."),
    ],
)
def test_one_rank_ends_the_job(job, faulty, how, who, code, text):
    _ends(job, faulty, how, who, code, text)


@pytest.mark.parametrize(
    ("how", "who", "code", "text"),
    [
        ("none", "all", 0, None),
        ("refuse", "all", 1, "Error: density must be in (0, 1], got 1.5"),
        ("usage", LAST, 1, "[rank {last} {host}] Error: no such thing"),
        ("leave3", LAST, 3, "[rank {last} {host}] Error: ended with exit code 3"),
        ("interrupt", "all", 130, "Interrupted; all ranks stop."),
        ("terminate", LAST, 143, "[rank {last} {host}] Interrupted; all ranks stop."),
    ],
)
def test_other_ends(one_job, faulty, how, who, code, text):
    _ends(one_job, faulty, how, who, code, text)


def _ends(job, faulty, how, who, code, text):
    names = {"last": job.ranks - 1, "host": os.uname().nodename}
    ended = job(faulty, how, who.format(**names))
    assert ended.code == code, ended.err
    if text is not None:
        assert ended.err.count(text.format(**names)) == 1, ended.err
    assert ("Traceback" in ended.err) == (how == "crash")


ODD_RANK = """
import os, sys
from mpicomp.cli import main
if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1":
    if sys.argv[1] == "config":
        os.environ["MPICOMP_CONFIG"] = "nowhere"
    else:
        sys.argv[2:] = [sys.argv[1]]
del sys.argv[1]
sys.exit(main())
"""


@pytest.mark.parametrize(("odd", "text"), [("config", "nowhere"), ("benhc", "No such command"), ("--bogus", "--bogus")])
def test_a_rank_that_fails_before_its_command_is_known(job, odd, text):
    """The others have started MPI and wait for it."""
    ended = job(["-c", ODD_RANK], odd, "bench", "-a", "native", "-b", "1K", "-e", "1K", "--min-time", ".01", "-q")
    assert ended.code == 1 and "[rank 1 " in ended.err and text in ended.err, ended.err


def test_usage_error_is_printed_once(one_job, faulty):
    ended = one_job(faulty, "bogus", "all")
    assert ended.code == 1
    assert ended.err.count("Error: Invalid value") == 1
    assert "started" not in ended.out


def test_commands_without_mpi_under_a_launcher(job, command):
    """Each rank for itself: no colours in a pipe, and rank 0 has spoken before another's exit code ends the job."""
    listed, alone = job(command, "schemes", "dense"), job(command)
    assert listed.code == 0 and "none + all + float + dense" in listed.out and "\x1b" not in listed.out
    assert alone.code == 1 and alone.err.count("Usage: mpicomp [OPTIONS] COMMAND") == 1


def test_bug_on_all_ranks_is_printed_once(one_job, faulty):
    ended = one_job(faulty, "crash", "all")
    assert ended.code == 1
    assert ended.err.count("ZeroDivisionError: a bug") == 1


def test_debug_shows_where_an_error_comes_from(one_job, faulty):
    ended = one_job(faulty, "refuse", "all", MPICOMP_DEBUG="1")
    assert ended.err.count("Traceback") == 1
    assert ended.err.count("Error: density must be in") >= 1


def test_nonsense_in_the_environment(one_job, faulty):
    ended = one_job(faulty, "none", "all", MPICOMP_LEAVE="soon")
    assert ended.code == 1
    assert ended.err.count("MPICOMP_LEAVE must be a positive number of seconds, got 'soon'") == 1


def test_a_trace_says_that_a_signal_ended_it(job, tmp_path):
    """On ranks that return from Python's handler, and on those that are inside MPI for good."""
    ended = job([str(Path(__file__).with_name("faulty_trace.py"))], str(tmp_path / "run.h5"))
    assert ended.code == 143, ended.err
    merged = recover(tmp_path / "run.h5.spool", tmp_path / "run.h5")
    assert merged.status == dict.fromkeys(range(job.ranks), "interrupted")
    with open_trace(tmp_path / "run.h5") as trace:
        assert trace.events("step")["step"].size == 7 * job.ranks


@pytest.mark.parametrize("code", [0, 1])
def test_alone(alone, faulty, code):
    ended = alone(faulty, "refuse" if code else "none", "all")
    assert ended.code == code
    assert "rank" not in ended.err


def test_sigterm_without_mpi():
    """An exception, so that a command removes the file that it has begun."""
    group, before = click.Group(), signal.getsignal(signal.SIGTERM)
    group.command("x")(lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        assert guard.run(group, ["x"]) == 143
    finally:
        signal.signal(signal.SIGTERM, before)


def test_signal_alone(alone, faulty):
    ended = alone(faulty, "interrupt", "all")
    assert ended.code == 128 + signal.SIGINT
    assert ended.err == "Interrupted; all ranks stop.\n"


def test_foreign_launcher_is_refused(alone, command):
    started = {"PMI_RANK": "0", "PMI_SIZE": "4"}
    ended = alone([*command], "bench", "--sizes", "1K", **started)
    assert ended.code == 1
    assert "rank 0 of 1" in ended.err and "4" in ended.err and "Traceback" not in ended.err
    other = alone([*command], "bench", "--sizes", "1K", **{**started, "PMI_RANK": "3"})
    assert other.code == 1
    assert "Error" not in other.err  # rank 0 has said it


@pytest.mark.parametrize("how", ["bench", "train"])
def test_a_foreign_launcher_writes_nothing(alone, command, tmp_path, how):
    output = tmp_path / "out"
    arguments = {
        "bench": ["bench", "--sizes", "1K", "-o", str(output)],
        "train": ["train", "logreg", "--data", "synthetic:n=20,d=5", "--epochs", "1", "--trace", str(output)],
    }[how]
    ended = alone([*command], *arguments, SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="3")
    assert ended.code == 1
    assert "rank 0 of 1, but Slurm's srun started 3" in ended.err
    assert not list(tmp_path.iterdir())


def test_info_explains_a_foreign_launcher(alone, command):
    ended = alone([*command], "info", PMI_RANK="0", PMI_SIZE="4")
    assert ended.code == 0
    assert "-> this process is rank 0 of 1" in ended.out


def test_ranks_that_were_told_different_things_are_refused():
    """Such as by a shell on each node, or a configuration that only some hosts name."""
    start = [sys.executable, "-m", "mpicomp.cli", "bench", "-b", "8", "-e", "8", "--iters", "2"]
    launcher = str(Path(sys.executable).parent / "mpiexec")
    ended = run([launcher, "-n", "1", *start, ":", "-n", "1", *start, "--seed", "5"])
    assert ended.code == 1 and "Traceback" not in ended.err, ended.err
    assert ended.err.count("Error: the ranks were told to do different things") == 1, ended.err
    assert "rank 0: bench -b 8 -e 8 --iters 2; rank 1: bench -b 8 -e 8 --iters 2 --seed 5." in ended.err


def test_a_second_signal_keeps_the_exit_code(monkeypatch):
    """It must not lead to the interpreter's own end, in which MPI_Finalize may wait for ever."""
    def interrupted(*_):
        raise Interrupted(143)

    monkeypatch.setattr(Guard, "finish", interrupted)
    monkeypatch.setattr(Guard, "abort", interrupted)
    assert guard.run(click.Group(), ["--help"]) == 143
