"""Source distribution and wheel from two clean checkouts: is it all there, and are the bytes the same?

    python tests/repository/build_twice.py [--keep FOLDER]      needs `build` in this Python, and a compiler; minutes

Both are built as a packager does, `python -m build` with SOURCE_DATE_EPOCH, from checkouts of the last commit in
folders of different names. The wheel is then unpacked elsewhere and must run `mpicomp --version` and its operations.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from multiprocessing.pool import ThreadPool
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# One file of each kind that a rule could forget.
IN_SOURCE = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "apps/logreg.py", "slurm/env.sh", "mpicomp/py.typed",
             "mpicomp/ops/cpu/module.cpp", "mpicomp/ops/cpu/arrays.h", "mpicomp/ops/gpu/common.cuh")  # fmt: skip
IN_WHEEL = ("mpicomp/py.typed", "mpicomp/ops/_cpu.pyi", "mpicomp/apps/logreg.py", "mpicomp/slurm/env.sh",
            "mpicomp/simulate/published.json", "mpicomp/ops/gpu/gather.cu", "mpicomp/ops/gpu/common.cuh",
            "mpicomp/torch/__init__.py")  # fmt: skip
USE = "from mpicomp.ops import _cpu; from mpicomp import _version; print(_version.__file__, _cpu.isa())"


def words(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def built(folder):
    """The two files that a checkout in ``folder`` gives."""
    words("git", "clone", "--quiet", ROOT, folder)
    epoch = words("git", "-C", folder, "log", "-1", "--format=%ct")
    out = folder.with_name(f"{folder.name}-dist")
    words(sys.executable, "-m", "build", "--outdir", out, folder, env={**os.environ, "SOURCE_DATE_EPOCH": epoch})
    return sorted(out.iterdir())


def missing(archive):
    """Files that are missing from an archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return sorted(set(IN_WHEEL) - set(wheel.namelist()))
    with tarfile.open(archive) as source:
        return sorted(set(IN_SOURCE) - {name.partition("/")[2] for name in source.getnames()})


def runs(wheel, folder):
    """Output of the unpacked wheel about itself; its dependencies are those of this Python."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    said = words(sys.executable, "-c", USE, cwd="/", env={**os.environ, "PYTHONPATH": str(folder)})
    if not said.startswith(str(folder)):
        sys.exit(f"not the wheel's, but {said}")
    return said.split()[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="an empty folder for what is built, instead of a temporary one")
    keep = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as temporary:
        folder = (keep or Path(temporary)).resolve()
        with ThreadPool(2) as both:  # side by side: compilers of one keep a core busy while the other packs
            pairs = list(zip(*both.map(built, (folder / "one", folder / "another-name")), strict=True))
        different = [a.name for a, b in pairs if a.read_bytes() != b.read_bytes()]
        for one, _ in pairs:
            lost = missing(one)
            print(f"{one.name}: sha256 {hashlib.sha256(one.read_bytes()).hexdigest()}, "
                  f"{one.stat().st_size} bytes{', lacks ' + ', '.join(lost) if lost else ''}")
        print(f"the wheel runs: {runs(pairs[0][0], folder / 'unpacked')}")
        lacking = [one.name for one, _ in pairs if missing(one)]
        if different or lacking:
            sys.exit(f"built twice, different: {', '.join(different) or 'none'}; incomplete: {lacking or 'none'}")


if __name__ == "__main__":
    main()
