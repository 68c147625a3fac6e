"""The compiled operations under GCC's sanitizers: what ``make sanitize`` runs.

    python tests/sanitize.py [address | undefined | thread]

Each builds them in build/NAME. ``address`` (AddressSanitizer) and ``undefined`` (UndefinedBehaviorSanitizer) run the
tests of the operations and bent input for every decoder of the wire; ``thread`` (ThreadSanitizer) what helper threads
do (tests/threads_of_ops.py). The interpreter is not instrumented: the sanitizer's library is
loaded before it. Leaks are not looked for: the interpreter and NumPy keep much to the end. A finding ends the run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMON = "-O1 -g -fno-omit-frame-pointer"
FLAGS = {
    "address": f"{COMMON} -fsanitize=address",
    "undefined": f"{COMMON} -fsanitize=undefined -fno-sanitize-recover=undefined",
    "thread": f"{COMMON} -fsanitize=thread",
}
LIBRARIES = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=66:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=66",
    # Reports on the interpreter itself, which is not instrumented, would all be false.
    "TSAN_OPTIONS": "exitcode=66:halt_on_error=1:ignore_noninstrumented_modules=1:report_signal_unsafe=0",
}
OPERATIONS = [["-m", "pytest", "-q", "-p", "no:faulthandler", "tests/ops", "--deselect",
               "tests/ops/test_cuda_compiles.py"],
              ["tests/fuzz/fuzz.py", "--only", "wire:", "--count", os.environ.get("COUNT", "2000")]]  # fmt: skip
RUNS = {"address": OPERATIONS, "undefined": OPERATIONS, "thread": [["tests/threads_of_ops.py"]]}


def main(names: list[str]) -> int:
    for name in names or list(FLAGS):
        if name not in FLAGS:
            sys.exit(f"choose from {', '.join(FLAGS)}, got {name!r}")
        package = build(name)
        for arguments in RUNS[name]:
            print(f"== {name}: {' '.join(arguments)}", flush=True)
            command = [sys.executable, "-P", *arguments]
            code = subprocess.run(command, cwd=ROOT, env=environment(name, package)).returncode
            if code:
                print(f"== {name} FAILED (exit code {code})")
                return 1
    print("== no finding")
    return 0


def build(name: str) -> Path:
    """A copy of the package with the instrumented extension; the folder to import it from."""
    folder = ROOT / "build" / name
    target = folder / "mpicomp"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "mpicomp", target, ignore=shutil.ignore_patterns("*.so", "__pycache__", "apps"))
    shutil.copytree(ROOT / "apps", target / "apps", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(folder), "--build-temp",
               str(folder / "objects")]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "MPICOMP_CXXFLAGS": FLAGS[name]})
    return folder


def environment(name: str, package: Path) -> dict[str, str]:
    library = subprocess.check_output(["gcc", f"-print-file-name={LIBRARIES[name]}"], text=True).strip()
    return {**os.environ, **OPTIONS, "LD_PRELOAD": library, "PYTHONPATH": str(package),
            "MPICOMP_FUZZ": "sanitize", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
