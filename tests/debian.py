"""Debian's packages that some tests need, installed where CI=true or MPICOMP_APT=1 allow it: needs root.

    python tests/debian.py slurm | chromium | simgrid

A package that cannot be installed is reported and is no error: the tests that need it are skipped with the reason.
"""

import os
import shutil
import subprocess
import sys

PACKAGES = {
    "slurm": ("iproute2", "slurm-wlm", "munge", "libpmix2"),
    "chromium": ("chromium",),
    "simgrid": ("python3-simgrid",),
}  # fmt: skip


def install(packages):
    """Install what is missing of some packages; return what was done, or why not."""
    names = " ".join(packages)
    if shutil.which("apt-get") is None:
        return f"not installing {names}: no apt-get here"
    if all(_run("dpkg-query", "-s", package).returncode == 0 for package in packages):
        return f"{names}: installed"
    if os.environ.get("CI") != "true" and os.environ.get("MPICOMP_APT") != "1":
        return f"not installing {names}: neither CI=true nor MPICOMP_APT=1"
    if os.geteuid() != 0:
        return f"not installing {names}: needs root"
    for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        done = _run("apt-get", "-qq", *words)
        if done.returncode:
            return f"apt-get {words[0]} failed: {done.stderr.strip()[-2000:]}"
    return f"installed {names}"


def _run(*command):
    # In run level 1 the packages' daemons are not started: tests bring their own configuration.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in PACKAGES:
        sys.exit(__doc__)
    print(install(PACKAGES[sys.argv[1]]))
