"""Metadata of a run and its ranks: enough to read the trace years later, and no secrets."""

from __future__ import annotations

import json
import os
import socket
import sys
import uuid
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TypedDict

from .._util import environment_variables
from .._util.versions import version_of
from .._version import __version__
from . import clock
from .units import ranges


class RankMetadata(TypedDict):
    """One rank's process."""

    rank: int
    hostname: str
    pid: int
    cpus: str
    clock: str  # see `clock.identity`


def run_metadata(title: str, n_ranks: int, configuration: Mapping[str, object] | None = None) -> dict[str, object]:
    """Metadata common to all ranks; the values are JSON's."""
    return {
        "run_id": uuid.uuid4().hex,
        "title": title,
        "creator": f"mpicomp {__version__}",
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "n_ranks": n_ranks,
        "command_line": sys.argv,
        "configuration": json.loads(json.dumps(dict(configuration or {}), default=str)),
        "environment": environment_variables.explaining(),
        "git_revision": git_revision(Path.cwd()),
        "slurm_job_id": os.environ.get("SLURM_JOB_ID", ""),
        "python_version": sys.version.split()[0],
        "mpi_library": _mpi_library(),
        **{f"{name}_version": _version(name) for name in ("mpi4py", "numpy", "cupy")},
    }


def rank_metadata(rank: int) -> RankMetadata:
    """Metadata of this process."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return {
        "rank": rank,
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "cpus": ranges(cpus),
        "clock": clock.identity(),
    }


def git_revision(folder: Path) -> str:
    """The commit checked out in ``folder`` or above it, read without starting git; empty if there is none."""
    for parent in (folder, *folder.parents):
        git = parent / ".git"
        try:
            if git.is_file():  # a worktree or submodule: "gitdir: PATH"
                git = parent / git.read_text().removeprefix("gitdir:").strip()
            if git.is_dir():
                return _commit(git)
        except (OSError, ValueError):
            return ""
    return ""


def _commit(git: Path) -> str:
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head
    name = head[5:]
    common = git / (git / "commondir").read_text().strip() if (git / "commondir").is_file() else git
    for place in (git / name, common / name):
        if place.is_file():
            return place.read_text().strip()
    packed = (line.split() for line in (common / "packed-refs").read_text().splitlines())
    return next((words[0] for words in packed if words[1:] == [name]), "")


def _mpi_library() -> str:
    mpi = sys.modules.get("mpi4py.MPI")  # not imported here: that would start MPI
    return mpi.Get_library_version().split("\n")[0].strip("\0 ") if mpi else ""


def _version(name: str) -> str:
    module = sys.modules.get(name)
    return (getattr(module, "__version__", "") or version_of(name) or "") if module else ""
