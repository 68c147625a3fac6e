"""The limits of the test runners: on the time without progress, never on the time a slow machine takes."""

import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import progress
import run_all
import run_mpi

HANGS = """
import time

def test_good():
    pass

def test_hangs():
    print("about to wait", flush=True)
    time.sleep(1000)
"""


def test_a_process_that_makes_progress_is_waited_for():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"])
    assert progress.wait(process, itertools.count().__next__, limit=0.0) == 0


def test_a_process_without_progress_is_given_up():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        assert progress.wait(process, lambda: "the same", limit=0.5) is None
    finally:
        process.kill()
        process.wait()


def test_a_hanging_job_ends_and_the_hanging_test_is_named(tmp_path, monkeypatch):
    """The clock is frozen until the test that hangs has begun, so that no slow machine fails this test."""
    path, hours = tmp_path / "test_planted.py", itertools.count()
    path.write_text(HANGS)

    def clock():
        begun = run_mpi.tests(tmp_path, 0)
        return 3600 * next(hours) if begun.exists() and "in " in last(begun) and "test_hangs" in last(begun) else 0

    def last(file):
        return (file.read_text().splitlines() or [""])[-1]

    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    command = [sys.executable, run_mpi.__file__, "--inside", str(tmp_path), str(path)]
    code, _ = run_mpi.run_limited(command, run_mpi.job_environment(), 600, tmp_path)
    assert code is None
    reason = run_mpi.no_progress(tmp_path, 2, 600)
    assert reason.startswith("no rank began or ended a test for 600 s; rank 0: in ")
    assert "test_planted.py::test_hangs; rank 1: before the tests" in reason
    assert "about to wait" in run_mpi.log(tmp_path, 0).read_text()
    pid = (tmp_path / "pid0").read_text()
    assert not Path(f"/proc/{pid}/cmdline").exists() or str(tmp_path) not in Path(f"/proc/{pid}/cmdline").read_text()


def test_a_stage_that_prints_goes_on_and_a_silent_one_is_killed(capfdbinary):
    prints = "import time\nfor i in range(5): print(i); time.sleep(.01)"
    assert run_all.run_printing([sys.executable, "-c", prints], limit=600) == 0
    assert b"0\n1\n2\n3\n4\n" in capfdbinary.readouterr().out
    assert run_all.run_printing([sys.executable, "-c", "import time; time.sleep(1000)"], limit=1) is None
