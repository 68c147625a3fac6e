"""Going on without ranks that die, in real jobs of Open MPI; refusals; what a dead rank leaves behind."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest
from progress import PATIENCE_S, slowed, until
from run_mpi import ROOT, interpreter, job_environment
from soak_ft import RANK, detector, run

from mpicomp import survivors
from mpicomp.comm import node_memory
from mpicomp.comm.node_memory import ORPHANED_S, SEARCH_S, remove_orphans
from mpicomp.comm.safety.fault_injection import DETECTOR_THREAD, finalize_hangs
from mpicomp.errors import RankLeft
from mpicomp.trace import open_trace

RANKS = 3
DATA = "synthetic:n=120,d=40,seed=1"


def job(mpi, *arguments, options=(), ranks=RANKS, **environment):
    python = interpreter(mpi)
    launcher = python.parent / "mpiexec"
    if not launcher.exists():
        pytest.skip(f"no environment with {mpi}")
    command = [str(launcher), *options, "-n", str(ranks if mpi == "openmpi" else 2), str(python), *arguments]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=400,
                          env=job_environment(PYTHONPATH=str(ROOT), **environment))  # fmt: skip


def train(*arguments, mpi="openmpi", options=("--with-ft", "ulfm"), **environment):
    return job(mpi, "-m", "mpicomp.cli", "train", "logreg", "--data", DATA, "--workers", "7", "--epochs", "4", "--ft",
               "--json", *arguments, options=options, **environment)  # fmt: skip


@pytest.mark.parametrize(
    ("scheme", "fault"),
    [("topk:density=0.2", "kill:rank=0,call=90"), ("oktopk:density=0.2", "raise:rank=1,call=70"),
     pytest.param("onebit", "segv:rank=2,call=31", marks=pytest.mark.long("another sudden end, as kill"))],
)
def test_survivors_go_on_and_say_who_is_missing(tmp_path, scheme, fault):
    path = tmp_path / "run.h5"
    ended = train("--scheme", scheme, "--trace", str(path), MPICOMP_FAULT=fault)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    rank = int(re.search(r"rank=(\d)", fault)[1])
    (loss,) = result["losses"]
    assert loss["ranks"] == [rank] and loss["memory_norm"] > 0
    steps = result["steps"]
    assert 0 < loss["step"] < steps and result["series"][-1]["step"] == steps
    assert [one["step"] for one in result["series"]] == list(range(steps // 4, steps + 1, steps // 4))
    assert f"lost rank {rank} before step {loss['step']}" in ended.stderr
    with open_trace(path) as trace:
        metrics = trace.metrics()
        assert metrics["lost_rank"]["value"].tolist() == [rank]
        assert metrics["lost_memory_norm"]["value"].tolist() == [loss["memory_norm"]]
        assert [state == "closed" for state in trace.status()] == [other != rank for other in range(RANKS)]
    assert not path.with_name("run.h5.spool").exists()


@pytest.mark.parametrize(("arguments", "text"), [
    (("--data", "nofile"), "no file 'nofile'"), (("--workers", "1"), "workers must be at least 3"),
    (("--scheme", "topk:memory=ef21"), "--ft does not work with"), (("--resume",), "leave out --checkpoint, "),
])  # fmt: skip
def test_what_is_refused_leaves_no_trace(tmp_path, arguments, text):
    """The corrected command would have to pass it by."""
    ended = train(*arguments, "--trace", str(tmp_path / "run.h5"))
    assert ended.returncode == 1 and text in ended.stderr and "Traceback" not in ended.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.long("whole jobs of other faults")
def test_survivors_have_the_same_model():
    script = str(RANK)
    ended = job("openmpi", script, "scalecom:chunk=10", "2", options=("--with-ft", "ulfm"),
                MPICOMP_FAULT="kill:rank=1,call=200")  # fmt: skip
    ends = re.findall(r"^END (\d) (\d+ \d+) \[1\]$", ended.stdout, re.M)
    assert [rank for rank, _ in sorted(ends)] == ["0", "2"], ended.stdout + ended.stderr
    assert len({steps_and_bits for _, steps_and_bits in ends}) == 1


RAISES = """
import sys
import numpy as np
from mpi4py import MPI
from mpicomp import survivors

class Job:
    step, steps, lost = 0, 20, []

    def begin(self, comm, loss):
        self.comm = comm
        if loss:
            self.step, self.lost = loss.step, self.lost + loss.ranks

    def advance(self):
        if self.step == 5 and str(MPI.COMM_WORLD.rank) in sys.argv[1]:
            exec(sys.argv[2])
        self.comm.Allreduce(MPI.IN_PLACE, np.ones(4))
        self.step += 1

job = Job()
group = survivors.run(MPI.COMM_WORLD, job)
print("END", MPI.COMM_WORLD.rank, job.step, job.lost, flush=True)
group.leave()
"""


@pytest.mark.long("whole jobs of other faults")
@pytest.mark.parametrize(("raising", "code", "left"), [("1", 0, ["0", "2", "3"]), ("0123", 1, [])])
def test_an_own_program_goes_on_without_a_rank_that_raises_but_not_if_all_do(raising, code, left):
    """Four ranks, of which MPI_Abort would leave some."""
    ended = job("openmpi", "-c", RAISES, raising, "raise ValueError", options=("--with-ft", "ulfm"), ranks=4)
    assert ended.returncode == code, ended.stderr
    assert sorted(re.findall(r"^END (\d) 20 \[1\]$", ended.stdout, re.M)) == left, ended.stdout
    assert f"[mpicomp] rank {raising[0]} of 4" in ended.stderr


@pytest.mark.parametrize(
    ("leaving", "argument", "code", "left"), [("1", "'no data'", 0, ["0", "2"]), ("012", "7", 7, [])]
)
def test_an_own_program_goes_on_without_a_rank_that_exits_but_not_if_all_do(leaving, argument, code, left):
    ended = job("openmpi", "-c", RAISES, leaving, f"sys.exit({argument})", options=("--with-ft", "ulfm"),
                MPICOMP_TIMEOUT="60")  # fmt: skip
    assert ended.returncode == code, ended.stderr
    assert ("no data" in ended.stderr) == (argument == "'no data'"), ended.stderr
    assert sorted(re.findall(r"^END (\d) 20 \[1\]$", ended.stdout, re.M)) == left, ended.stdout


def test_one_is_left_of_those_killed_at_once():
    """Within 1.5 s, long before the end of so many steps: a rank killed behind its last word would not be missed."""
    options = Namespace(ranks=RANKS, kills=RANKS - 1, at_once=True, stop=False, epochs=60, limit=PATIENCE_S)
    ended, text = run("topk:density=0.1", options, random.Random())
    assert ended == "good", text


@pytest.mark.long("whole jobs of other faults")
def test_a_stopped_rank_is_lost_where_the_detector_is_on_and_the_job_ends():
    """A rank stopped by SIGSTOP stays a process, for which mpirun would wait."""
    script = str(RANK)
    ended = job("openmpi", script, "topk:density=0.2", "1", options=("--with-ft", "ulfm", *detector(slowed(5))),
                MPICOMP_FAULT="stop:rank=1,call=60")  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ends = re.findall(r"^END (\d) (\d+ \d+) \[1\]$", ended.stdout, re.M)
    assert sorted(rank for rank, _ in ends) == ["0", "2"] and len({bits for _, bits in ends}) == 1, ended.stdout


ELSEWHERE = """
import runpy, sys
from mpi4py import MPI
from mpicomp import survivors
process = survivors.process
survivors.process = lambda pid: (MPI.COMM_WORLD.rank + 1, *process(pid)[1:])
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.long("whole jobs of other faults")
def test_a_stopped_rank_that_no_survivor_can_end_is_left_to_mpirun():
    """Each rank acts as if on a node of its own; if mpirun did not end the stopped rank, the job would never end."""
    script = str(RANK)
    ended = job("openmpi", "-c", ELSEWHERE, script, "topk:density=0.2", "1",
                options=("--with-ft", "ulfm", *detector(slowed(5))), MPICOMP_FAULT="stop:rank=1,call=60")  # fmt: skip
    assert ended.returncode == survivors.OUT_OF_REACH == 76, ended.stdout + ended.stderr
    assert "ranks [1] were given up" in ended.stderr and "leaving with exit code 76" in ended.stderr
    ends = re.findall(r"^END (\d) (\d+ \d+) \[1\]$", ended.stdout, re.M)
    assert sorted(rank for rank, _ in ends) == ["0", "2"] and len({bits for _, bits in ends}) == 1, ended.stdout
    stopped = int(re.search(r"READY 1 (\d+)", ended.stdout)[1])
    until(lambda: survivors.process(stopped) == (0, 0, 0))  # killed, and not buried yet


@pytest.mark.long("whole jobs of other faults")
def test_the_detector_does_not_keep_a_job_that_fails():
    """Its thread lets MPI_Finalize wait for ever. No rank is lost: Open MPI would crash if one were in MPI_Init."""
    for _ in range(3):
        ended = train("--eval-every", "0", options=("--with-ft", "ulfm", *detector(60)))
        if "ompi_mpi_init" not in ended.stderr:  # where Open MPI 5.0.11 has crashed with that thread, before our code
            break
    assert ended.returncode not in (0, 124) and "Error: " in ended.stderr, ended.stderr


@pytest.mark.parametrize(
    ("value", "hangs"), [(None, False), ("", False), ("False", False), ("0", False), ("true", True), ("1", True)]
)
def test_whether_the_detector_is_a_thread(monkeypatch, value, hangs):
    monkeypatch.delenv(DETECTOR_THREAD, raising=False)
    if value is not None:
        monkeypatch.setenv(DETECTOR_THREAD, value)
    assert finalize_hangs() == hangs


@pytest.mark.long("whole jobs of other faults")
def test_without_the_detector_the_watchdog_ends_the_job_of_a_stopped_rank():
    script = str(RANK)
    ended = job("openmpi", script, "topk:density=0.2", "1", options=("--with-ft", "ulfm"), MPICOMP_TIMEOUT=slowed(4),
                MPICOMP_FAULT="stop:rank=1,call=60")  # fmt: skip
    assert ended.returncode == 70 and "END" not in ended.stdout, ended.stdout + ended.stderr
    assert "rank 1: no answer: stopped, gone" in ended.stderr


def test_news_of_a_failure_may_come_only_while_mpi_progresses():
    class Base:
        """Stand-in for Open MPI, which learns only by calls that progress what another rank was told."""

        revoked = False

        def Iprobe(self):
            self.revoked = True
            raise survivors.MPI.Exception(survivors.MPI.ERR_OTHER)

        def Is_revoked(self):
            return self.revoked

        def Get_failed(self):
            return survivors.MPI.GROUP_EMPTY.Dup()

    left = RankLeft("rank 0 left a collective")
    assert survivors.Survivors.lost_somebody(SimpleNamespace(_base=Base()), left)


def test_only_the_very_process_is_ended():
    """A number may have gone to another process since: one that began later is not the one that was lost."""
    home, pid, began = survivors.process(os.getpid())
    assert pid == os.getpid() and home > 0 and began > 0
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert survivors.process(gone.pid) == (0, 0, 0)
    stopped, other = (subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"]) for _ in range(2))
    stopped.send_signal(signal.SIGSTOP)
    table = [survivors.process(stopped.pid), survivors.process(other.pid)]
    table[1] = (*table[1][:2], table[1][2] - 1)
    survivors.Survivors._end(SimpleNamespace(_processes=np.array([*table, (home, 0, 0)], np.int64)), [0, 1, 2])
    try:
        assert stopped.wait(PATIENCE_S) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_refusals():
    for mpi, options, text in (
        ("openmpi", (), "fault tolerance needs mpirun --with-ft ulfm"),
        ("mpich", (), "fault tolerance needs Open MPI 5 started by mpirun --with-ft ulfm; this is MPICH"),
    ):
        ended = train(mpi=mpi, options=options)
        assert ended.returncode == 1
        assert text in ended.stdout + ended.stderr and "checkpoints" in ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr
    ended = train("--scheme", "localsgd")
    assert ended.returncode != 0 and "needs a model that is the same on all ranks" in ended.stderr


def test_without_threads(monkeypatch):
    monkeypatch.setenv(survivors.TOLERANT, "1")
    monkeypatch.setattr(survivors.MPI, "get_vendor", lambda: ("Open MPI", (5, 0, 11)))
    monkeypatch.setattr(survivors.MPI, "Query_thread", lambda: survivors.MPI.THREAD_FUNNELED)
    assert "MPI_THREAD_MULTIPLE" in survivors.problem()


def test_orphaned_segments_are_removed(tmp_path):
    """Removed: old segments of a dead maker. Kept: those of a live maker, young ones, files with another name."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    old = time.time() - 2 * ORPHANED_S
    names = {f"mpicomp-{dead.pid}-a": old, f"mpicomp-{dead.pid}-b": time.time(), f"mpicomp-{os.getpid()}-c": old,
             "mpicomp-x-d": old, "other": old}  # fmt: skip
    for name, when in names.items():
        (tmp_path / name).write_bytes(np.random.default_rng().bytes(9))
        os.utime(tmp_path / name, (when, when))
    remove_orphans(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == set(names) - {f"mpicomp-{dead.pid}-a"}


def test_orphans_are_looked_for_once_and_after_an_hour(monkeypatch):
    """Not with every segment: a folder of thousands of files would be read each time."""
    times, searches = [1000.0, 1001.0, 999.0 + SEARCH_S, 1000.0 + SEARCH_S, 1001.0 + SEARCH_S], []
    clock = iter(times)
    monkeypatch.setattr(node_memory, "_searched", None)
    monkeypatch.setattr(node_memory, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(node_memory, "remove_orphans", searches.append)
    for _ in times:
        path, fd = node_memory.create(4096)
        os.close(fd)
        os.unlink(path)
    assert len(searches) == 2
