"""Kill ranks of a training run in fault-tolerant mode again and again, and count how it ends.

    python tests/soak/soak_ft.py [--count 200] [--ranks 4] [--kills 1] [--at-once] [--stop] [--seed N] [--json FILE]

Each run trains on ``--ranks`` ranks under ``mpirun --with-ft ulfm`` with a scheme by turns, and loses random ranks at
random times, by SIGKILL; with ``--stop`` by SIGSTOP, which Open MPI's detector is to notice. Good: every survivor ends
by itself with the same bits of the model and of what it says of the losses, all steps done, and the victims named.
Hung: no rank makes progress within the limit; then the ranks' stacks are shown. Anything else is bad, and shown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from run_mpi import ROOT, interpreter, job_command, job_environment

RANK = Path(__file__).with_name("soak_ft_rank.py")
SCHEMES = ("dense", "topk:density=0.1", "scalecom:chunk=10", "gtopk:density=0.1", "oktopk:density=0.1",
           "powersgd:rank=2", "onebit", "qsgd", "randomk:density=0.1")  # fmt: skip
LIMIT_S = 90  # without ten more steps of any rank; a whole run takes a few seconds on a machine that is not busy


def run(scheme: str, options: argparse.Namespace, rng: random.Random) -> tuple[str, str]:
    """One training run: how it ended, and its output where that was not good."""
    ranks = options.ranks
    launcher, *rest = job_command(interpreter("openmpi"), ranks)
    noticed = detector(8) if options.stop else []
    command = [launcher, "--with-ft", "ulfm", *noticed, *rest, str(RANK), scheme, str(options.epochs)]
    job = subprocess.Popen(command, env=job_environment(PYTHONPATH=str(ROOT)), stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)  # fmt: skip
    pids: dict[int, int] = {}
    lines: list[str] = []
    try:
        for line in job.stdout:
            lines.append(line)
            if found := re.match(r"READY (\d+) (\d+)", line):
                pids[int(found[1])] = int(found[2])
            if len(pids) == ranks:
                break
        if len(pids) < ranks:
            return "did not start", "".join(lines)
        killed = kill(pids, options, rng)
        lines.append(f"killed {killed}\n")
        text = last_words(job, options.limit)
        if text is None:
            return "hung", "".join(lines) + where(job, pids)
        lines.append(text)
    finally:
        end(job, pids)
    return verdict("".join(lines), set(killed), ranks)


def kill(pids: dict[int, int], options: argparse.Namespace, rng: random.Random) -> list[int]:
    """SIGKILL (or SIGSTOP) random ranks at random times; those that had not ended yet."""
    victims, killed = rng.sample(sorted(pids), options.kills), []
    for number, victim in enumerate(victims):
        time.sleep(rng.uniform(0, 1.5) if number == 0 or not options.at_once else 0)
        with suppress(ProcessLookupError):
            os.kill(pids[victim], signal.SIGSTOP if options.stop else signal.SIGKILL)
            killed.append(victim)
    return killed


def detector(seconds: float | str) -> list[str]:
    """Options of mpirun that let Open MPI give up ranks that are silent for so long, not those that compute."""
    settings = {"": "true", "_thread": "true", "_timeout": str(seconds), "_period": "1"}
    return [word for name, value in settings.items() for word in ("--mca", f"mpi_ft_detector{name}", value)]


def last_words(job: subprocess.Popen, limit: float) -> str | None:
    """Output of a job until its end; None if it prints nothing new for ``limit`` seconds."""
    said = b""
    while True:
        try:
            return job.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired as silence:
            heard = silence.output or b""
            if heard == said:
                return None
            said = heard


def where(job: subprocess.Popen, pids: dict[int, int]) -> str:
    """Stacks of the hanging ranks, which a signal makes them write, also inside MPI."""
    for pid in pids.values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    time.sleep(2)
    end(job, pids)
    return job.communicate()[0]


def verdict(text: str, killed: set[int], ranks: int) -> tuple[str, str]:
    ends = {int(rank): (rest, set(json.loads(lost))) for rank, rest, lost in
            re.findall(r"^END (\d+) (\S+ \S+) (\[.*\])$", text, re.M)}  # fmt: skip
    survivors = set(range(ranks)) - killed
    alike = len({rest for rank, (rest, _) in ends.items() if rank in survivors}) == 1
    if not survivors <= set(ends) or not alike:
        return "bad", text
    named = set.union(*(lost for _, lost in ends.values()))
    if named == killed:
        return "good", ""
    return ("too late", "") if killed - named <= set(ends) else ("bad", text)


def end(job: subprocess.Popen, pids: dict[int, int]) -> None:
    """Nothing may be left of the job: its group, and the ranks that told their process ids."""
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGTERM)
    for pid in pids.values():
        with suppress(OSError):
            if RANK.name in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        job.wait(10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--kills", type=int, default=1, help="ranks lost in each run, one after the other")
    parser.add_argument("--at-once", action="store_true", help="all of them at the same time")
    parser.add_argument("--stop", action="store_true", help="stop ranks instead of killing them: they seem to hang")
    parser.add_argument("--epochs", type=int, default=12, help="50 steps each")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds in which some rank must make progress")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rng, outcomes = random.Random(options.seed), Counter()
    print(f"seed {options.seed}, {options.ranks} ranks, {options.kills} kills a run", flush=True)
    for number in range(options.count):
        scheme = SCHEMES[number % len(SCHEMES)]
        outcome, text = run(scheme, options, rng)
        outcomes[outcome] += 1
        if text:
            print(f"--- run {number}, {scheme}: {outcome}\n{text[-3000:]}")
        if (number + 1) % 10 == 0 or text:
            print(f"{number + 1} runs: {dict(outcomes)}", flush=True)
    return report(outcomes, options)


def report(outcomes: Counter, options: argparse.Namespace) -> int:
    runs = sum(outcomes.values())
    counted: dict[str, Any] = {"ranks": options.ranks, "kills": options.kills, "at_once": options.at_once,
                               "stop": options.stop, "runs": runs, **outcomes}  # fmt: skip
    print(json.dumps(counted))
    if options.json:
        options.json.write_text(json.dumps(counted) + "\n")
    return 1 if outcomes["hung"] or outcomes["bad"] > 0.02 * options.count else 0


if __name__ == "__main__":
    sys.exit(main())
