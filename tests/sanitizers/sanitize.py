"""The compiled operations under GCC's sanitizers, the CUDA kernels under checks of ours: what ``make sanitize`` runs.

    python tests/sanitizers/sanitize.py [address] [thread] [cuda]

``address`` (AddressSanitizer with UndefinedBehaviorSanitizer) runs the tests of the operations and bent input for
every decoder of the wire; ``thread`` (ThreadSanitizer) what helper threads do (threads_of_ops.py). Both are built at
the same time, each in a copy of the package in a temporary folder, so that nothing here sees them; .cache keeps what
was compiled until the sources change. The interpreter is not instrumented: the sanitizer's library is loaded before
it. A finding ends the run.

``cuda`` runs the kernels' tests on the CPU with several blocks at once, and looks at every access to memory: races,
accesses outside arrays, undefined behaviour (tests/ops/cuda_checks.h). Every kernel must have been run in several.

Two things make the builds short, for what takes long is to instrument pybind11 in every file. All files are compiled as
one. And loops are compiled once instead of for every instruction set: sanitizers look at the source, which is the same
(code written for a register's width is there for each).

Not looked for: leaks (the interpreter and NumPy keep much to the end); members of null pointers (AddressSanitizer stops
at their use); what functions in other libraries do.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "mpicomp" / "ops" / "cpu"
CACHE = ROOT / ".cache" / "sanitizers"
# Asked for here and not by the threads that build: in Python 3.11 the first two to ask at once may get None.
SUFFIX, INCLUDE = sysconfig.get_config_var("EXT_SUFFIX"), sysconfig.get_paths()["include"]

COMMON = ["-std=c++17", "-O0", "-g1", "-fno-omit-frame-pointer", "-ffp-contract=off", "-fvisibility=hidden", "-fPIC",
          "-shared", "-DMPICOMP_ONE_COPY"]  # fmt: skip
FLAGS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize=null,vptr", "-fno-sanitize-recover=undefined"],
    "thread": ["-fsanitize=thread"],
}
FOUND = 66  # exit code of a process with a finding
LIBRARIES = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
OPTIONS = {
    "ASAN_OPTIONS": f"detect_leaks=0:exitcode={FOUND}:allocator_may_return_null=1",
    "UBSAN_OPTIONS": f"print_stacktrace=1:halt_on_error=1:exitcode={FOUND}",
    # Reports on the interpreter itself, which is not instrumented, would all be false.
    "TSAN_OPTIONS": f"exitcode={FOUND}:halt_on_error=1:ignore_noninstrumented_modules=1:report_signal_unsafe=0",
}
WORKERS = min(4, os.cpu_count() or 1)
OPERATIONS = [
    ["-m", "pytest", "-q", "-p", "no:faulthandler", "tests/ops", "-k", "not cuda", f"--numprocesses={WORKERS}",
     "--timeout=0"],
    ["tests/fuzz/fuzz.py", "--only", "wire:", "--count", os.environ.get("COUNT", "100")],
]  # fmt: skip
# The faults that must be found (tests/sanitizers/planted_fault.py), and what their reports must say.
IN_OPERATION = "mpicomp/ops/cpu/reduce.cpp"
PLANTED = {"address": {"address": IN_OPERATION, "undefined": "signed integer overflow"},
           "thread": {"thread": IN_OPERATION}}  # fmt: skip
RUNS = {"address": OPERATIONS, "thread": [["tests/sanitizers/threads_of_ops.py"]]}
# Without what has no kernel to run, huge grids, and half of the slowest tests.
KERNELS = ["-m", "pytest", "-q", "tests/ops", "--ignore=tests/ops/test_cuda_compiles.py",
           "--ignore=tests/ops/test_large.py", "-k",
           "cuda and not (products_of_integers and (cuda-1 or cuda-3 or cuda-5 or cuda-7))",
           f"--numprocesses={WORKERS}"]  # fmt: skip


def main(names: list[str]) -> int:
    names = names or [*FLAGS, "cuda"]
    if set(names) - {*FLAGS, "cuda"}:
        sys.exit(f"choose from {', '.join(FLAGS)}, cuda, got {' '.join(names)}")
    if "cuda" in names and (code := check_kernels()):
        return code
    names = [name for name in names if name != "cuda"]
    with tempfile.TemporaryDirectory(prefix="mpicomp-sanitize-") as folder, ThreadPoolExecutor() as pool:
        packages = dict(zip(names, pool.map(lambda name: build(name, Path(folder) / name), names), strict=True))
        return next((code for name in names if (code := run(name, packages[name]))), 0)


def check_kernels() -> int:
    """The exit code of the kernels' tests; 1 where a kernel was not run in several blocks."""
    sys.path.insert(0, str(ROOT / "tests" / "ops"))
    from cuda_on_cpu import CheckedRuntime

    from mpicomp.ops.gpu import cuda_runtime

    if reason := CheckedRuntime.missing():
        print(f"== cuda: without checks of memory: {reason}", flush=True)
        return subprocess.run([sys.executable, *KERNELS], cwd=ROOT).returncode
    print(f"== cuda: {' '.join(KERNELS)}", flush=True)
    with tempfile.NamedTemporaryFile("r") as log:
        variables = {**os.environ, "MPICOMP_CHECK_CUDA": log.name}
        code = subprocess.run([sys.executable, *KERNELS], cwd=ROOT, env=variables).returncode
        spread = {line.partition("<")[0].strip() for line in log}
    kernels = {name.partition("<")[0] for names in cuda_runtime.KERNELS.values() for name in names}
    if code == 0 and (alone := sorted(kernels - spread)):
        print(f"== cuda: never in several blocks: {' '.join(alone)}")
        code = 1
    print(f"== cuda FAILED (exit code {code})" if code else "== cuda: no finding", flush=True)
    return code


def run(name: str, package: Path) -> int:
    """Run the programs under a sanitizer, one after the other: return the exit code of the first with a finding.

    First faults that it must find, or its silence would mean nothing.
    """
    python = [*plain_addresses(), sys.executable]
    for fault, report in PLANTED[name].items():
        planted = subprocess.run([*python, "tests/sanitizers/planted_fault.py", fault], cwd=ROOT, text=True,
                                 capture_output=True, env=environment(name, package))  # fmt: skip
        if planted.returncode != FOUND or report not in planted.stderr:
            print(f"== {name} FAILED: a planted fault was not found ({fault})\n{planted.stderr[-2000:]}")
            return 1
    python.append("-P")
    for arguments in RUNS[name]:
        print(f"== {name}: {' '.join(arguments)}", flush=True)
        code = subprocess.run([*python, *arguments], cwd=ROOT, env=environment(name, package)).returncode
        if code:
            print(f"== {name} FAILED (exit code {code})")
            return code
    print(f"== {name}: no finding", flush=True)
    return 0


def plain_addresses() -> list[str]:
    """Command prefix that turns off random addresses: ThreadSanitizer refuses those of new kernels."""
    setarch = shutil.which("setarch")
    possible = setarch and subprocess.run([setarch, "-R", "true"], capture_output=True).returncode == 0
    return [setarch, "-R"] if possible else []


def build(name: str, folder: Path) -> Path:
    """A copy of the package with the instrumented extension; the folder to import it from."""
    import pybind11

    options = [*COMMON, *FLAGS[name]]
    whole = all_in_one()
    texts = [whole, *(file.read_text() for file in sorted(SOURCES.iterdir()) if file.suffix in (".cpp", ".h"))]
    compiler = subprocess.check_output(["g++", "--version"], text=True)
    key = hashlib.sha256(repr((options, compiler, pybind11.__version__, SUFFIX, texts)).encode()).hexdigest()[:16]
    made = CACHE / f"{name}-{key}{SUFFIX}"
    target = folder / "mpicomp"
    shutil.copytree(ROOT / "mpicomp", target, ignore=shutil.ignore_patterns("*.so", "__pycache__", "apps"))
    shutil.copytree(ROOT / "apps", target / "apps", ignore=shutil.ignore_patterns("__pycache__"))
    if not made.exists():
        source, partial = folder / "all.cpp", made.with_suffix(f".{os.getpid()}")
        source.write_text(whole)
        places = [SOURCES, pybind11.get_include(), INCLUDE]
        print(f"== {name}: compiling", flush=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(["g++", *options, *(f"-I{place}" for place in places), source, "-o", partial], check=True)
        partial.replace(made)
    shutil.copy(made, target / "ops" / f"_cpu{SUFFIX}")
    return folder


def all_in_one() -> str:
    """All sources as one."""
    return "".join(f'#include "{file.name}"\n' for file in sorted(SOURCES.glob("*.cpp")))


def environment(name: str, package: Path) -> dict[str, str]:
    found = [subprocess.check_output(["gcc", f"-print-file-name={library}"], text=True).strip()
             for library in LIBRARIES[name]]  # fmt: skip
    return {**os.environ, **OPTIONS, "LD_PRELOAD": " ".join(found), "PYTHONPATH": str(package),
            "MPICOMP_FUZZ": "sanitize", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
