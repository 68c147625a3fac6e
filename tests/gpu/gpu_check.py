"""Check and measure this machine's GPU within a time limit: what ``make gpu-check`` runs.

    python tests/gpu/gpu_check.py --preflight [--wheels FOLDER] [--output FOLDER]
    python tests/gpu/gpu_check.py [--seconds 480] [--wheels FOLDER] [--output FOLDER] [--elements N,N] [PART ...]

``--preflight`` probes the machine in less than a minute and prints what to carry to it. The check itself needs no
network. It installs nothing but the wheels it is given, and leaves out, with the reason, the parts that lack something;
without a C++ compiler the NumPy oracle takes the place of the compiled operations. A part that is cut keeps what it
found. FOLDER gets <gpu>.json and <gpu>.md after every part, and <gpu>.log with the parts' output as it is written.

Exit codes: 0 all passed (preflight: all that is required is there), 1 something failed, 3 no GPU here, 4 a GPU but no
CuPy.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

BEGUN = time.monotonic()  # all that follows counts towards the limit

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gpu_machine as machine  # noqa: E402
from gpu_machine import ROOT, environment, launcher  # noqa: E402
from gpu_report import document, json_lines, markdown, part_table, save  # noqa: E402

PASSED, FAILED, NO_GPU, NO_CUPY = 0, 1, 3, 4
SECONDS = 480.0
AT_ONCE = 8  # processes of tests that share the GPU
LEAST = 5.0  # seconds that a part is begun with
WHEELS_S = 120.0
NOT_STARTED = 127  # a shell's exit code for this
GRACE = 3.0  # seconds that a part that is cut has to end by itself
KERNEL_TESTS = ["-m", "pytest", "-q", "tests/ops"]
SMALL_TESTS = "spans or pack or masked_update or digits"


class Part(NamedTuple):
    """A process to run: at most ``seconds``, if ``needs`` (of gpu_machine.PROBES) are usable."""

    name: str
    command: list[str]
    seconds: float
    needs: tuple[str, ...] = ()


def parts(elements: list[int] | None = None) -> list[Part]:
    """The parts in the order in which they run: quick and informative ones first."""
    python = sys.executable
    tests = [python, *KERNEL_TESTS, "--maxfail=50"]
    at_once = ["-n", str(min(AT_ONCE, os.cpu_count() or 1))] if machine.has("xdist") else []
    under = ["compute-sanitizer", "--error-exitcode", "9", "--target-processes", "all", "--tool"]

    def ranks(n: int, script: str) -> list[str]:
        return [launcher() or "mpiexec", "-n", str(n), python, f"tests/gpu/{script}.py"]

    build = Part("build", [python, "setup.py", "-q", "build_ext", "--inplace"], 120, ("compiler",))
    return [
        *([] if machine.compiled() else [build]),
        Part("kernels against the oracle", [*tests, *at_once], 150, ("cupy", "nvrtc", "pytest")),
        Part("benchmarks", [python, "tests/gpu/bench.py", *map(str, elements or [])], 120, ("cupy", "nvrtc")),
        Part("calls, 2 ranks", ranks(2, "calls"), 60, ("cupy", "nvrtc", "mpi")),
        Part("paths to other ranks", ranks(max(2, min(4, machine.gpus())), "paths"), 60, ("cupy", "nvrtc", "mpi")),
        Part("host time of a step", [python, "tests/gpu/host_time.py", "--steps", "200"], 30, ("cupy", "nvrtc", "mpi")),
        *(Part(f"schemes, {n} ranks", ranks(n, "schemes"), 60, ("cupy", "nvrtc", "mpi")) for n in (1, 2, 3, 4)),
        Part("PowerSGD beside PyTorch's", [python, "tests/gpu/powersgd.py"], 60, ("cupy", "nvrtc", "mpi", "torch")),
        Part("PyTorch, 2 ranks", ranks(2, "torch_steps"), 60, ("cupy", "nvrtc", "mpi", "torch")),
        *(Part(tool, [*under, tool, *tests, "-p", "no:xdist", "-k", SMALL_TESTS], 100,
               ("cupy", "nvrtc", "pytest", "compute-sanitizer")) for tool in ("memcheck", "racecheck")),
    ]


def why_skipped(part: Part) -> str | None:
    """The requirements of a part that are not usable here."""
    lacking = [one for one in map(machine.probed, part.needs) if not one.usable]
    return "; ".join(f"{one.name} is missing ({one.detail}): {one.advice}" for one in lacking) or None


# ---- running

class Cut(BaseException):
    """A signal asks the check itself to end."""


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Raise Cut for SIGTERM and SIGINT, so that what was found so far is written."""
    def cut(number: int, frame: object) -> None:
        raise Cut(signal.Signals(number).name)

    previous = {number: signal.signal(number, cut) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def run(part: Part, limit: float, log: Path) -> dict[str, Any]:
    """A part's outcome: passed, failed or stopped; seconds; the JSON lines it printed; the end of its output."""
    start, code, reason = time.monotonic(), None, None
    with log.open("a+", encoding="utf-8", errors="replace") as output:
        output.write(f"\n== {part.name}\n")
        output.flush()
        begin = output.tell()
        process = None
        try:
            process = subprocess.Popen(part.command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL,
                                       stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            code = process.wait(timeout=limit)
        except OSError as error:  # the other parts run
            code, reason = NOT_STARTED, str(error)
        except subprocess.TimeoutExpired:
            reason = f"its limit was {limit:.0f} s"
        except Cut as cut:
            reason = f"the check was ended by {cut}"
        if code is None and process is not None:
            end(process)
        output.seek(begin)
        text = without_folders(output.read())
    outcome = "stopped" if code is None else "passed" if code == 0 else "failed"
    return {"part": part.name, "outcome": outcome, "exit_code": code, "limit_s": round(limit, 1),
            "seconds": round(time.monotonic() - start, 1), "results": json_lines(text), "reason": reason,
            "output": text[-2000:] if outcome != "passed" else ""}


def without_folders(text: str) -> str:
    """Paths relative to this copy and to Python's environment: results are read elsewhere."""
    for folder in (ROOT, Path(sys.prefix)):
        text = text.replace(f"{folder}/", "")
    return text


def end(process: subprocess.Popen[bytes]) -> None:
    """End a part and all processes of its session: a launcher's ranks need not be in its group."""
    os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == process.pid:
                os.kill(int(stat.parent.name), signal.SIGKILL)
        except OSError:  # it has ended meanwhile
            continue
    process.wait()


def check(chosen: list[Part], until: float, log: Path, keep: Callable[[list[dict[str, Any]]], None]
          ) -> list[dict[str, Any]]:  # fmt: skip
    """Run the parts one after the other until ``until`` (monotonic seconds); ``keep`` gets all outcomes after each."""
    outcomes: list[dict[str, Any]] = []
    cut: str | None = None
    for part in chosen:
        print(f"== {part.name} ...", end=" ", flush=True)
        try:
            reason = cut or why_skipped(part)
        except Cut as caught:
            reason = cut = f"the check was ended by {caught}"
        left = until - GRACE - time.monotonic()
        if reason is None and left < LEAST:
            reason = f"{max(0, left):.0f} s were left"
        outcome = ({"part": part.name, "outcome": "skipped", "reason": reason, "results": []} if reason
                   else run(part, min(part.seconds, left), log))  # fmt: skip
        if outcome["outcome"] == "stopped" and "ended by" in outcome["reason"]:
            cut = outcome["reason"]
        spent = f"after {outcome['seconds']} s" if "seconds" in outcome else ""
        print(outcome["outcome"], outcome.get("reason") or "", spent, flush=True)
        print(part_table(outcome), outcome["output"] if outcome["outcome"] == "failed" else "", sep="\n", flush=True)
        outcomes.append(outcome)
        try:
            keep(outcomes)
        except OSError as error:  # a full disk, say: the tables are printed
            print(f"the results could not be written: {error}", flush=True)
    return outcomes


def verdict(outcomes: list[dict[str, Any]]) -> int:
    """A part that was skipped or stopped at its limit has not passed, but only wrong results count as failed.

    A build that fails is no wrong result: the oracle takes its place.
    """
    failed = any(one["outcome"] == "failed" and one["part"] != "build" for one in outcomes)
    wrong = any(case.get("passed") is False for one in outcomes for case in one["results"])
    return FAILED if failed or wrong else PASSED


# ---- the two calls

def look(output: Path | None) -> int:
    """The preflight: probe, print, name what to carry; write preflight.json if a folder is given."""
    findings = machine.preflight()
    for one in findings:
        print(one)
    print(machine.to_carry(findings) or "nothing to carry")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        found = {"format": "mpicomp-gpu-preflight", "version": 1, "findings": [one._asdict() for one in findings]}
        (output / "preflight.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return FAILED if any(one.required and not one.usable for one in findings) else PASSED


def install(folder: Path, until: float) -> dict[str, Any]:
    """Install the wheels of a folder into this Python's environment, so that MPI's lib/ and bin/ come along."""
    files = [str(path.resolve()) for path in sorted(folder.glob("*.whl"))]
    part = Part("wheels", [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile",
                           "--no-cache-dir", "--disable-pip-version-check", *files], WHEELS_S)  # fmt: skip
    with tempfile.TemporaryDirectory() as aside:
        outcome = run(part, min(WHEELS_S, until - time.monotonic()), Path(aside) / "log")
    print(f"== {len(files)} wheels: {outcome['outcome']} after {outcome['seconds']} s {outcome['output']}", flush=True)
    importlib.invalidate_caches()
    return outcome


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="run only the parts whose names contain one of these words")
    parser.add_argument("--preflight", action="store_true",
                        help="probe the machine, name what to carry, run nothing else")
    parser.add_argument("--seconds", type=float, default=SECONDS,
                        help="time limit of the whole call, its start included (%(default)s)")
    parser.add_argument("--output", type=Path, help="folder for the results (docs/results; preflight: none)")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install into this Python's environment first")
    parser.add_argument("--elements", type=lambda text: [int(word) for word in text.split(",")], metavar="N,N",
                        help="lengths of the vectors of the benchmarks (25000000,400000000)")
    options = parser.parse_args(arguments)
    if options.wheels and not any(options.wheels.glob("*.whl")):
        parser.error(f"--wheels needs a folder of wheels, got {options.wheels}: --preflight prints how to fetch them")
    until = BEGUN + options.seconds
    with ending_on_signals():
        installed = [install(options.wheels, until)] if options.wheels else []
        name = machine.gpu_name()
        if name is None:
            print("no GPU here (neither nvidia-smi nor CuPy names one): nothing was run. make test runs the kernels' "
                  "source on the CPU")
            return NO_GPU
        if not machine.has("cupy"):
            print(f"cupy is missing: {machine.probed('cupy').advice}; --preflight prints how to fetch its wheels")
            return NO_CUPY
        if options.preflight:
            return look(options.output)
        chosen = [part for part in parts(options.elements)
                  if not options.parts or any(word in part.name for word in options.parts)]  # fmt: skip
        return report(name, chosen, until, installed, options.output or ROOT / "docs" / "results")


def report(name: str, chosen: list[Part], until: float, installed: list[dict[str, Any]], output: Path) -> int:
    """Run the parts, and print what was found in the end."""
    output.mkdir(parents=True, exist_ok=True)
    target = output / f"{slug(name)}.json"
    target.with_suffix(".log").unlink(missing_ok=True)
    outcomes = check(chosen, until, target.with_suffix(".log"),
                     lambda found: save(document(name, [*installed, *found]), target))
    print(f"\n{markdown(document(name, [*installed, *outcomes]))}\n{target}, .md and .log")
    return verdict([*installed, *outcomes])


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
