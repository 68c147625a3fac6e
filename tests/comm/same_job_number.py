"""Two jobs of Open MPI whose job numbers are equal share memory that each takes for its own, and crash or hang.

    python tests/comm/same_job_number.py [--trials 5] [--seconds 8] [--apart | --own-folder]

Needs Linux and root. Open MPI 5 makes files of the name sm_segment.HOST.USER.JOB.RANK in /dev/shm; JOB is a hash of
16 bits of the host's name and mpirun's process id, and an existing file is used as it is. Here two jobs of plain mpi4py
run in process, host-name and mount namespaces of their own, which lets us choose two process ids with the same hash.
``--apart`` takes ids with different hashes, ``--own-folder`` gives each job a folder of its own by
OMPI_MCA_btl_sm_backing_directory. Printed is how many trials ended well, and how the others did.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from run_mpi import interpreter, job_command, job_environment

HOST = "h"
JOB = """
import sys, time, numpy
from mpi4py import MPI
comm, end, x = MPI.COMM_WORLD, time.monotonic() + float(sys.argv[1]), numpy.ones(100, "f4")
while comm.bcast(time.monotonic() < end, 0):
    for _ in range(100):
        comm.Allreduce(MPI.IN_PLACE, x)
        assert (x == comm.size).all()
        x[:] = 1
"""
BETWEEN_S = 4  # the second job starts when the first is under way
ENDING_S = 30


def job_number(name: str) -> int:
    """Open MPI 5's number of a job, from its name: Jenkins's one-at-a-time hash, its halves folded into one."""
    total = 0
    for byte in name.encode():
        total = (total + byte) & 0xFFFFFFFF
        total = (total + (total << 10)) & 0xFFFFFFFF
        total ^= total >> 6
    total = (total + (total << 3)) & 0xFFFFFFFF
    total ^= total >> 11
    total = (total + (total << 15)) & 0xFFFFFFFF
    return (total >> 16) ^ (total & 0xFFFF)


def pair(apart: bool) -> tuple[int, int]:
    """Two process ids with the same job number; far enough from each other for what the first job starts."""
    seen: dict[int, int] = {}
    for pid in range(5000, 30000):
        number = job_number(f"prterun-{HOST}-{pid}")
        if number in seen and 300 < pid - seen[number] < 3000:
            return seen[number], pid + apart
        seen.setdefault(number, pid)
    raise SystemExit("no pair of process ids")


def start(pid: int, folder: Path, name: str, seconds: float, own: bool) -> subprocess.Popen:
    """mpirun as process ``pid`` of this namespace."""
    extra = {"TMPDIR": str(folder)}
    if own:
        Path("/dev/shm", name).mkdir()
        extra["OMPI_MCA_btl_sm_backing_directory"] = f"/dev/shm/{name}"
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    job = subprocess.Popen([*job_command(interpreter("openmpi"), 2), "-c", JOB, str(seconds)], text=True,
                           env=job_environment(**extra), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    if job.pid != pid:
        raise SystemExit(f"wanted process id {pid}, got {job.pid}")
    return job


def end(job: subprocess.Popen) -> str:
    """Wait for a job's end and describe it."""
    try:
        text = job.communicate(timeout=ENDING_S)[0]
    except subprocess.TimeoutExpired:
        job.kill()
        return "hung"
    if job.returncode == 0:
        return "well"
    where = re.search(r"\[ 1\] .*\((\w+)\+0x\w+\)", text)
    return f"segmentation fault in {where[1]}" if where else f"exit code {job.returncode}"


def inside(seconds: float, apart: bool, own: bool) -> None:
    """One trial, in namespaces of its own: prints how the two jobs ended."""
    subprocess.run(["hostname", HOST], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
    first, second = pair(apart)
    with tempfile.TemporaryDirectory() as folder:
        jobs = [start(first, Path(folder), "first", seconds, own)]
        time.sleep(BETWEEN_S)
        jobs.append(start(second, Path(folder), "second", seconds, own))
        print(json.dumps(sorted(map(end, jobs))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--apart", action="store_true", help="different job numbers")
    parser.add_argument("--own-folder", action="store_true", help="the same number, but a folder a job")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.seconds, options.apart, options.own_folder)
        return 0
    if os.geteuid():
        sys.exit("needs root, for namespaces and to choose process ids")
    outcomes: Counter[str] = Counter()
    for _ in range(options.trials):
        command = ["unshare", "--pid", "--fork", "--kill-child", "--uts", "--mount", "--mount-proc", sys.executable,
                   __file__, "--inside", *sys.argv[1:]]  # fmt: skip
        ended = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        outcomes[" / ".join(ended)] += 1
        print(ended, flush=True)
    print(json.dumps({"trials": options.trials, **outcomes}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
