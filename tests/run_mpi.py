"""Run the tests under tests/mpi inside every rank of real MPI jobs, one job for each number of ranks.

    python tests/run_mpi.py --mpi openmpi --sizes 1,2,3 [-m "not long"] [-k EXPRESSION] [FILE ...]

A job in which no rank begins or ends a test for the time limit is killed: its process group and the ranks that wrote
down their process id. However slow the machine is, a job that makes progress goes on. The output of each rank goes to a
file; if a job fails, the output of rank 0 and of failing ranks is shown.
"""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import progress

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "mpi"
SIZES = {"openmpi": "1,2,3,4,5,8", "mpich": "1,2,3"}
LIMIT = 600  # seconds without progress; on an idle machine no test takes a tenth of it
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] == "--inside":
        return run_rank(Path(sys.argv[2]), sys.argv[3:])
    options = parse()
    python = interpreter(options.mpi)
    os.environ["MPICOMP_MPI4PY_TESTS"] = str(mpi4py_tests(python))
    failed = [size for size in map(int, options.sizes.split(",")) if not run_job(options, python, size)]
    return 1 if failed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi", choices=sorted(SIZES), default="openmpi")
    parser.add_argument("--sizes", help="numbers of ranks, separated by commas")
    parser.add_argument("--limit", type=float, default=LIMIT,
                        help="seconds in which some rank must begin or end a test")
    parser.add_argument("-k", default="", help="run the tests whose names match, as pytest does")
    parser.add_argument("-m", default="", help="run the tests whose marks match, as pytest does")
    parser.add_argument("-v", "--verbose", action="store_true", help="show rank 0's output of every job")
    parser.add_argument("files", nargs="*", default=[str(TESTS)])
    options = parser.parse_args()
    options.sizes = options.sizes or SIZES[options.mpi]
    return options


def interpreter(mpi: str) -> Path:
    """Return the Python of an environment; the running one if there is no environment of that name."""
    python = ROOT / ".venv" / mpi / "bin" / "python"
    return python if python.exists() else Path(sys.executable)


def job_command(python: Path, size: int) -> list[str]:
    """Return the command that starts ``size`` ranks: the launcher beside the interpreter, of the same MPI."""
    launcher = python.parent / "mpiexec"
    return [str(launcher) if launcher.exists() else "mpiexec", "-n", str(size), str(python)]


def keep_apart() -> None:
    """Give the shared memory of Open MPI's jobs started from here a folder of its own, removed at the end.

    Two jobs on a machine whose numbers, hashes of 16 bits, are the same would write into one file
    (tests/comm/same_job_number.py).
    """
    variable, parent = "OMPI_MCA_btl_sm_backing_directory", Path("/dev/shm")
    if variable not in os.environ and os.access(parent, os.W_OK):
        for left in parent.glob("mpicomp-*-jobs-*"):  # of a killed run
            if not Path("/proc", left.name.split("-")[1]).exists():
                shutil.rmtree(left, ignore_errors=True)
        os.environ[variable] = tempfile.mkdtemp(prefix=f"mpicomp-{os.getpid()}-jobs-", dir=parent)
        atexit.register(shutil.rmtree, os.environ[variable], ignore_errors=True)


def job_environment(**extra: str) -> dict[str, str]:
    """Return an environment that allows more ranks than cores, and root, as which containers run."""
    keep_apart()
    return {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        # MPICH polls without end, also for ranks that share its core: a waiting rank sleeps instead.
        "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
        "MPIR_CVAR_POLLS_BEFORE_YIELD": "100",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        **extra,
    }


def mpi4py_tests(python: Path) -> Path:
    """Download the tests of the installed mpi4py once, into .cache, and return their folder."""
    version = ask(python, "import mpi4py; print(mpi4py.__version__)")
    folder = ROOT / ".cache" / f"mpi4py-{version}" / "test"
    if not folder.exists():
        print(f"   mpi4py   fetching the tests of mpi4py {version} ... ", end="", flush=True)
        fetch = [str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "mpi4py",
                 "--dest", str(ROOT / ".cache"), f"mpi4py=={version}"]  # fmt: skip
        try:
            subprocess.run(fetch, check=True, timeout=120, capture_output=True)
            with tarfile.open(ROOT / ".cache" / f"mpi4py-{version}.tar.gz") as archive:
                archive.extractall(ROOT / ".cache", filter="data")
            print("done", flush=True)
        except (subprocess.SubprocessError, OSError, tarfile.TarError) as error:
            print(f"those tests are skipped: {error}", flush=True)
    return folder


def ask(python: Path, program: str) -> str:
    """Return the output of a Python program."""
    return subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def run_job(options: argparse.Namespace, python: Path, size: int) -> bool:
    """Run one MPI job and print its line; return if every rank passed."""
    print(f"   {options.mpi:8} {size} rank{'s' if size > 1 else ' '} ... ", end="", flush=True)
    with tempfile.TemporaryDirectory(prefix="mpicomp-test-") as folder:
        logs = Path(folder)
        arguments = [*options.files, "-k", options.k, "-m", options.m]
        command = [*job_command(python, size), str(Path(__file__)), "--inside", str(logs), *arguments]
        begin = time.monotonic()
        environment = job_environment(MPICOMP_TEST_LOGS=str(logs), MPICOMP_TEST_TMP=str(logs / "tmp"))
        (logs / "tmp").mkdir()
        code, output = run_limited(command, environment, options.limit, logs)
        seconds = time.monotonic() - begin
        good = code == 0 and all(marker(logs, rank).exists() for rank in range(size))
        print(f"{'passed' if good else 'FAILED'}  {seconds:5.1f} s  {last_line(logs)}", flush=True)
        if not good:
            reason = f"exit code {code}" if code is not None else no_progress(logs, size, options.limit)
            show_failure(reason, output, logs, size)
        elif options.verbose:
            print(log(logs, 0).read_text(errors="replace"))
        return good


def run_limited(command: list[str], environment: dict[str, str], limit: float, logs: Path) -> tuple[int | None, str]:
    """Run in a process group of its own; return code and output, code None after ``limit`` seconds without progress."""
    with tempfile.TemporaryFile() as output:
        job = subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True, stdin=subprocess.DEVNULL,
                               stdout=output, stderr=subprocess.STDOUT)  # fmt: skip
        code = None
        try:
            code = progress.wait(job, lambda: {path: path.stat().st_size for path in logs.glob("tests*")}, limit)
        finally:
            if code is None:
                end_group(job)
            end_ranks(logs)
        output.seek(0)
        return code, output.read().decode(errors="replace")


def no_progress(logs: Path, size: int, limit: float) -> str:
    """Name the test in which each rank of a job is that made no progress."""
    where: dict[str, list[str]] = {}
    for rank in range(size):
        path = tests(logs, rank)
        lines = path.read_text().splitlines() if path.exists() else ["before the tests"]
        where.setdefault(lines[-1], []).append(str(rank))
    return f"no rank began or ended a test for {limit:.0f} s; " + "; ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}: {last}" for last, ranks in where.items())  # fmt: skip


class Progress:
    """Write down the beginning and end of each test: a pytest plugin."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w", buffering=1)

    def pytest_collection_finish(self) -> None:
        self.file.write("after the collection of the tests\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.file.write(f"in {nodeid}\n")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.file.write(f"after {nodeid}\n")


def end_group(job: subprocess.Popen[bytes]) -> None:
    """Ask the launcher to end the job; insist after a few seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(job.pid, number)
        with suppress(subprocess.TimeoutExpired):
            job.wait(timeout=10)
            return


def end_ranks(logs: Path) -> None:
    """Kill the ranks that wrote down their process id, if that process is still theirs."""
    for path in logs.glob("pid*"):
        pid = path.read_text().strip()
        with suppress(OSError, ValueError):
            if str(logs) in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(int(pid), signal.SIGKILL)


def log(logs: Path, rank: int) -> Path:
    """Return the file of a rank's output."""
    return logs / f"rank{rank}.log"


def tests(logs: Path, rank: int) -> Path:
    """Return the file of the beginning and end of each test of a rank, one per line."""
    return logs / f"tests{rank}"


def marker(logs: Path, rank: int) -> Path:
    """Return the file that a rank writes when it has passed: a launcher may return 0 although its ranks were killed."""
    return logs / f"passed{rank}"


def last_line(logs: Path) -> str:
    """Return the last line of rank 0's output: pytest's count."""
    path = log(logs, 0)
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1].strip("= ") if lines else ""


def show_failure(reason: str, output: str, logs: Path, size: int) -> None:
    """Print what the launcher, rank 0 and failing ranks printed."""
    print(f"\n--- {reason}; output of the launcher:\n{output[-3000:]}")
    shown = [0, *(rank for rank in range(1, size) if not marker(logs, rank).exists())]
    for rank in shown[:3]:
        path = log(logs, rank)
        text = path.read_text(errors="replace") if path.exists() else "(nothing)"
        print(f"--- rank {rank}:\n{text[-4000:]}")


def run_rank(logs: Path, arguments: list[str]) -> int:
    """Run pytest inside a rank, its output in a file."""
    rank = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0")
    (logs / f"pid{rank}").write_text(str(os.getpid()))
    sink = os.open(log(logs, int(rank)), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    import pytest

    options = ["-s", "-o", "timeout=0", "-p", "no:hypothesispytest", "--color=no", "--durations=8", "-q"]
    code = pytest.main([*options, *arguments], plugins=[Progress(tests(logs, int(rank)))])
    if code == 0:
        marker(logs, int(rank)).touch()
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
