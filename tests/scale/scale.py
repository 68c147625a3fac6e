"""Many ranks on one machine, far more than it has cores: the real code, to its end (`make test-scale`, minutes).

    python tests/scale/scale.py [--ranks 64] [--quick] [--output out/scale.json]

The collectives' tests run in that many ranks; then every rank says how much memory a `Comm` costs it, with few ranks
and with all, and trains with ScaleCom. Fails where a test fails, training does not get nearer to its minimum, ranks
disagree about it, or a rank's own memory for a `Comm` grows with the number of ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import run_mpi

FEW = 4  # ranks to compare with
SLACK = 4096  # bytes by which the memory of a Comm may differ: names, numbers of other lengths
FILES = ("allreduce/test_allreduce.py", "comm/test_verbs.py", "schemes/test_gather.py",
         "schemes/test_gtopk_and_powersgd.py")
TESTS = "not test_large"  # which keeps every rank's vector of megabytes on every rank
LIMIT_S = 1500


def collectives(ranks: int) -> bool:
    """Return True if the tests of the collectives pass in so many ranks."""
    script, files = run_mpi.ROOT / "tests" / "run_mpi.py", [run_mpi.TESTS / name for name in FILES]
    command = [sys.executable, script, "--sizes", ranks, "--limit", LIMIT_S, "-k", TESTS, *files]
    patient = {**os.environ, "MPICOMP_TEST_STUCK": str(LIMIT_S)}
    return subprocess.run([str(word) for word in command], env=patient).returncode == 0


def job(ranks: int) -> dict:
    """Report of `scale_job.py` with so many ranks."""
    python = run_mpi.interpreter("openmpi")
    command = [*run_mpi.job_command(python, ranks), str(Path(__file__).with_name("scale_job.py"))]
    quietly = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run(command, env=run_mpi.job_environment(), timeout=LIMIT_S, **quietly)
    if done.returncode:
        raise SystemExit(f"{ranks} ranks: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def faults(few: dict, many: dict) -> list[str]:
    """Faults of the job with many ranks, compared with the one with few."""
    found = []
    for what in ("kept", "peak"):
        grown = many["comm_bytes"][what] - few["comm_bytes"][what]
        if grown > SLACK:
            found.append(f"a Comm's memory ({what}) grows by {grown} bytes, {few['ranks']} to {many['ranks']} ranks")
    if not many["alike"]:
        found.append("ranks do not have the same course of training")
    if not many["gap_last"] < many["gap_first"]:
        found.append(f"training: the gap went from {many['gap_first']} to {many['gap_last']}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--quick", action="store_true", help="the two jobs alone, on 2 and 3 ranks: a try-out")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the figures, as JSON")
    options = parser.parse_args()
    if not options.quick and not collectives(options.ranks):
        return 1
    few, many = job(2 if options.quick else FEW), job(3 if options.quick else options.ranks)
    if options.output:
        options.output.write_text(json.dumps({"few": few, "many": many}, indent=1) + "\n")
    for one in (few, many):
        memory = ", ".join(f"{name} {value / 2**20:.1f}" for name, value in one["bytes"].items())
        print(f"{one['ranks']} ranks: a Comm keeps {one['comm_bytes']['kept']} bytes of Python's memory, at most "
              f"{one['comm_bytes']['peak']}; MiB of the fullest rank: {memory}; the gap went from "
              f"{one['gap_first']:.4g} to {one['gap_last']:.4g} in {one['steps']} steps")  # fmt: skip
    found = faults(few, many)
    print("\n".join(f"FAILED: {text}" for text in found) or "scale: passed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
