"""Rehearse tests/gpu/gpu_check.py on a machine as bare as it may meet, with the emulated CuPy.

    python tests/cupy_on_cpu/rehearse.py [FOLDER]

The machine is a copy of the tree with nothing compiled, an environment without MPI, no C++ compiler for setup.py, and
no network but the loopback interface. The preflight names what to carry; its command fetches it, outside; then the
preflight and the whole check run with it in a fresh environment each. FOLDER keeps the results.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import build

ROOT = build.ROOT
LEFT_OUT = (".git", ".venv", ".cache", "out", "build", "*.so", "__pycache__", "*.egg-info")
THERE = ("numpy", "ml_dtypes", "pytest", "pytest-timeout", "hypothesis")  # packages that machines with CuPy have
LACKING = {"build": "compiler", "PyTorch, 2 ranks": "torch", "PowerSGD beside PyTorch's": "torch",
           "memcheck": "compute-sanitizer", "racecheck": "compute-sanitizer"}  # fmt: skip
SECONDS, ELEMENTS = 480, 20_000
PATIENCE = 1200  # seconds: the check ends itself
# Interfaces of a new network namespace are down: SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP.
LOOPBACK = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    name, flags = struct.unpack("16sh", fcntl.ioctl(any_socket, 0x8913, struct.pack("16sh", b"lo", 0)))
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", name, flags | 1))
os.execvp(sys.argv[1], sys.argv[1:])
"""


def apart() -> list[str]:
    """Words before a command that cut its network; none, with a warning, if that is not allowed here."""
    for options in ("-n", "-rn"):
        words = ["unshare", options, sys.executable, "-c", LOOPBACK]
        if shutil.which("unshare") and subprocess.run([*words, "true"], check=False).returncode == 0:
            return words
    print("the network is not cut: unshare -n is not allowed here")
    return []


class Machine:
    """A copy of the tree and a Python environment without MPI."""

    def __init__(self, place: Path, number: int) -> None:
        self._python = place / f"machine {number}" / "bin" / "python"
        venv.create(self._python.parents[1], with_pip=True)
        pip = [str(self._python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *THERE]
        subprocess.run(pip, check=True, timeout=600)
        self._tree = place / f"tree {number}"
        shutil.copytree(ROOT, self._tree, ignore=shutil.ignore_patterns(*LEFT_OUT))

    def check(self, cut: list[str], *options: str) -> tuple[int, str]:
        """Exit code and output of tests/gpu/gpu_check.py there."""
        emulated = {**build.environment(), "PYTHONPATH": str(build.CACHE / "site"), "CXX": "no-compiler"}
        command = [*cut, str(self._python), "tests/gpu/gpu_check.py", *options]
        print("==", " ".join(command[len(cut) :]), flush=True)
        done = subprocess.run(command, cwd=self._tree, env=emulated, check=False, timeout=PATIENCE, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        print(done.stdout, f"exit code {done.returncode}", flush=True)
        return done.returncode, done.stdout


def fetch(said: str, place: Path) -> Path:
    """Run the download command that the preflight printed, which needs a network."""
    (line,) = (line for line in said.splitlines() if " pip download " in line)
    subprocess.run([sys.executable, *shlex.split(line)[1:]], cwd=place, check=True, timeout=600)
    return place / "wheels"


def wrong(parts: list[dict[str, Any]]) -> list[str]:
    """Parts with another outcome than such a machine gives. Which are cut depends on its speed."""
    found = []
    for part in parts:
        outcome, reason = part["outcome"], part.get("reason") or ""
        if part["part"] in LACKING:
            right = outcome == "skipped" and f"{LACKING[part['part']]} is missing" in reason
        elif outcome == "passed":
            right = part["part"] == "wheels" or bool(part["results"])
        else:
            right = outcome == "stopped" or "s were left" in reason
        if not right:
            found.append(f"{part['part']}: {outcome} {reason} {part.get('output', '')}")
    return found


def main(words: list[str]) -> int:
    try:
        build.built()
    except build.Unavailable as error:
        print(f"skipped: CuPy cannot be built for a machine without a GPU here: {error}")
        return build.SKIPPED
    cut = apart()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        first, second = Machine(place, 1), Machine(place, 2)
        output = Path(words[0]).resolve() if words else place / "results"
        code, said = first.check(cut, "--preflight")
        assert code == 1 and "mpi MISSING" in said and "compiler MISSING" in said, "the preflight overlooked something"
        wheels = str(fetch(said, place))
        code, said = first.check(cut, "--preflight", "--wheels", wheels, "--output", str(output))
        assert code == 0 and "mpi ok" in said and (output / "preflight.json").exists(), "the wheels did not help"
        code, said = second.check(cut, "--seconds", str(SECONDS), "--wheels", wheels, "--output", str(output),
                                  "--elements", str(ELEMENTS))
        (results,) = output.glob("emulated*.json")
        found = wrong(json.loads(results.read_text())["parts"])
        assert results.with_suffix(".md").exists() and results.with_suffix(".log").exists(), "files are missing"
    print("\n".join(found) or "the rehearsal went well")
    return 1 if found or code else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
