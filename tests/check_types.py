"""mypy --strict over the whole package, its applications included: what ``make lint`` runs after ruff.

    python tests/check_types.py

The applications are installed as ``mpicomp.apps`` but lie beside the package, so a folder of links joins them as an
installation does. mypy keeps its results in .cache: a second run takes seconds.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JOINED = ROOT / ".cache" / "types"


def join() -> None:
    """Links to everything in the package, and to the applications as one of its parts."""
    package = JOINED / "mpicomp"
    package.mkdir(parents=True, exist_ok=True)
    wanted = {path.name: path for path in (ROOT / "mpicomp").iterdir()} | {"apps": ROOT / "apps"}
    wanted["satisfy_protocol.py"] = ROOT / "tests" / "ops" / "satisfy_protocol.py"
    for link in package.iterdir():
        if link.readlink() != wanted.get(link.name):
            link.unlink()
    for name, path in wanted.items():
        if not (package / name).is_symlink():
            (package / name).symlink_to(path)


def main() -> int:
    if find_spec("mypy") is None:
        print("types are checked by mypy, which is not installed: pip install 'mpicomp[dev]'", file=sys.stderr)
        return 2
    join()
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "-p", "mpicomp"]
    done = subprocess.run([str(word) for word in command], cwd=JOINED, capture_output=True, text=True)
    print(done.stdout.replace("mpicomp/apps/", "apps/") + done.stderr, end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
