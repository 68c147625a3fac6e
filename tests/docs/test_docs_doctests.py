"""Examples in docstrings run and print what they show, in a process of their own: MPI starts in it, on one rank."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_examples_in_docstrings(tmp_path):
    files = sorted(path for path in (ROOT / "mpicomp").rglob("*.py") if ">>> " in path.read_text()
                   and (find_spec("torch") or path.parent.name != "torch"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPICOMP_ALLOW_SINGLETON": "1", "TMPDIR": str(tmp_path),
                   "OMP_NUM_THREADS": "1"}  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-q", "--doctest-modules", "-p", "no:xdist", *files]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for name in ("comm/comm.py", "reducer/reducer.py", "schemes/registration.py"):
        assert ROOT / "mpicomp" / name in files, f"the main class of mpicomp/{name} has no example"
    assert int(re.search(r"(\d+) passed", ended.stdout)[1]) >= 20
