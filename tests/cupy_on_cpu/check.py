"""Program of ``make test-cupy``: the GPU's tests with the real CuPy on an emulated device (build.py), and a rehearsal
of tests/gpu/gpu_check.py. It takes a quarter of an hour.

Exit code 0 also where CuPy cannot be built here (no package index, no g++); it says why.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "gpu")]
from gpu_check import KERNEL_TESTS  # noqa: E402
from gpu_machine import environment, launcher  # noqa: E402

import build  # noqa: E402

PYTHON = sys.executable
PATIENCE = 3600  # seconds for each command


def ranks(n: int, script: str) -> list[str]:
    return [launcher() or "mpiexec", "-n", str(n), PYTHON, script]


def main() -> int:
    try:
        emulated = build.environment()
    except build.Unavailable as error:
        print(f"skipped: CuPy cannot be built for a machine without a GPU here: {error}")
        return 0
    there = {**environment(), **emulated}
    runs = [
        ([PYTHON, "tests/cupy_on_cpu/planted.py"], {"EMULATED_CUDA_DEVICES": "2"}),
        *((ranks(n, "tests/gpu/calls.py"), {"EMULATED_CUDA_DEVICES": str(n)}) for n in (1, 2)),
        (ranks(2, "tests/gpu/paths.py"), {"EMULATED_CUDA_DEVICES": "2"}),
        *((ranks(n, "tests/gpu/schemes.py"), {}) for n in (1, 2, 3)),
        (ranks(2, "docs/examples/on_gpu.py"), {}),
        ([PYTHON, "tests/gpu/host_time.py", "--quick"], {"EMULATED_CUDA": "idle"}),
        ([PYTHON, *KERNEL_TESTS, "-n", "2"], {}),
        ([PYTHON, "tests/cupy_on_cpu/rehearse.py"], {}),
    ]
    failed = 0
    for command, options in runs:
        print("==", " ".join(command[1:]), *(f"{name}={value}" for name, value in options.items()), flush=True)
        ended = subprocess.run(command, cwd=ROOT, env={**there, **options}, timeout=PATIENCE, check=False)
        failed += ended.returncode != 0
    print(f"{len(runs) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
