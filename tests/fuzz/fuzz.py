"""Bent inputs for every decoder of bytes that come from another rank or from a file.

    python tests/fuzz/fuzz.py [--count 10000] [--seconds 2400] [--only NAME] [--seed N] [--json FILE]
    python tests/fuzz/fuzz.py --only NAME --seed N --case I       one case again, with its traceback

An input must be read, or refused by an error of ours. Everything else is a finding: another exception, a crash, more
than 30 s (an endless loop), more than 1 GiB beyond what the process had (an allocation by a number in the file), a
valid input that is refused. Each decoder runs in a process of its own; case I of a decoder depends on seed and I alone.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stand_ins"))

import bending
import files
import wire

from mpicomp.errors import MpicompError

CASE_S = 30
MEMORY = 1 << 30
LIMIT_S = 3000  # of one decoder


def decoders(folder: Path) -> dict[str, Callable]:
    """By name, ``make(rng)``: a valid input and its reader."""
    of_files = {f"file: {name}": partial(make, folder) for name, make in files.decoders()}
    return {**{f"wire: {name}": make for name, make in wire.decoders()}, **of_files}


def names() -> list[str]:
    return list(decoders(Path()))


def try_one(make: Callable, seed: int, name: str, case: int) -> tuple[bool, str]:
    """Try one case: return True if the input was read, and the message; raise a finding."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode()), case])
    data, read = make(rng)
    way, bent = bending.bent(data, rng)
    try:
        read(bent)
    except MpicompError as error:
        if way == "nothing":
            raise AssertionError(f"a valid input was refused: {error}") from error
        return False, f"{way}: {type(error).__name__}: {error}"
    return True, way


def inside(name: str, seed: int, first: int, count: int, seconds: float = LIMIT_S) -> dict[str, Any]:
    """Run cases here; the number of the case goes to the file MPICOMP_FUZZ_CASE before it is tried."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    if "sanitize" not in os.environ.get("MPICOMP_FUZZ", ""):  # which maps terabytes of its own
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = resource.getrlimit(resource.RLIMIT_AS)[1]  # a child that reads a file may take its own
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, most))
    note = os.open(os.environ.get("MPICOMP_FUZZ_CASE", os.devnull), os.O_RDWR | os.O_CREAT)
    for module, forks in files.FORKS.items():
        module.subprocess = forks
    accepted, tried, longest, findings, end = 0, 0, 0.0, [], time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="mpicomp-fuzz-", dir=shared_memory()) as folder:
        make = decoders(Path(folder))[name]
        for case in range(first, first + count):
            os.pwrite(note, b"%20d %20.3f" % (case, cpu_s()), 0)
            faulthandler.dump_traceback_later(CASE_S - 2)
            signal.alarm(CASE_S)  # its default action: what loops inside a library ends here
            start = time.perf_counter()
            try:
                accepted += try_one(make, seed, name, case)[0]
            except Exception:
                findings.append({"case": case, "said": traceback.format_exc()[-1500:]})
                if len(findings) == 5:
                    end = 0
            longest, tried = max(longest, time.perf_counter() - start), tried + 1
            if time.monotonic() > end:
                break
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
    return {"inputs": tried, "accepted": accepted, "refused": tried - accepted - len(findings),
            "longest_s": round(longest, 3), "findings": findings}  # fmt: skip


def cpu_s() -> float:
    """Seconds of CPU time of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def shared_memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def fuzz(name: str, seed: int, count: int, seconds: float) -> dict[str, Any]:
    """One decoder in a process of its own."""
    with tempfile.NamedTemporaryFile() as note:
        before = cpu_s()
        command = [sys.executable, __file__, "--inside", "--only", name, "--seed", str(seed), "--count", str(count),
                   "--seconds", str(seconds)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S,
                              env={**os.environ, "MPICOMP_FUZZ_CASE": note.name})  # fmt: skip
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1])
        case, used = (Path(note.name).read_text() or "-1 0").split()
    used_here = cpu_s() - before - float(used)
    said = (f"the process ended with {done.returncode}, after {used_here:.1f} s of CPU time in this case (much less "
            f"than {CASE_S} s: the machine was busy)\n{done.stderr[-4000:]}")
    return {"inputs": count, "accepted": 0, "refused": 0, "longest_s": 0.0,
            "findings": [{"case": int(case), "said": said}]}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10000, help="inputs for each decoder")
    parser.add_argument("--seconds", type=float, default=2400, help="no new input for a decoder after so long")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--only", action="append", help="a decoder by name; or the beginning of names")
    parser.add_argument("--case", type=int, help="try this case alone, and print its message")
    parser.add_argument("--json", type=Path, help="write the table to this file, too")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(inside(options.only[0], options.seed, 0, options.count, options.seconds)))
        return 0
    if options.case is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(*try_one(decoders(Path(folder))[options.only[0]], options.seed, options.only[0], options.case))
        return 0
    return run([name for name in names() if not options.only or name.startswith(tuple(options.only))], options)


def run(chosen: list[str], options: argparse.Namespace) -> int:
    table, failed = {}, 0
    print(f"seed {options.seed}, {options.count} inputs a decoder")
    for name in chosen:
        start = time.perf_counter()
        row = table[name] = fuzz(name, options.seed, options.count, options.seconds)
        failed += bool(row["findings"])
        print(f"{name:36} {row['inputs']:>8} inputs {row['accepted']:>8} read {row['refused']:>8} refused "
              f"{len(row['findings'])} findings, longest {1e3 * row['longest_s']:.0f} ms, "
              f"{time.perf_counter() - start:.1f} s", flush=True)  # fmt: skip
        for finding in row["findings"]:
            print(f"  to repeat: --only '{name}' --seed {options.seed} --case {finding['case']}\n{finding['said']}")
    if options.json:
        options.json.write_text(json.dumps({"seed": options.seed, "decoders": table}, indent=1) + "\n")
    print(f"{len(chosen)} decoders, {failed} with findings")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
