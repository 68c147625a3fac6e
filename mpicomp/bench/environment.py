"""Where a measurement was taken: versions, ranks, CPUs, and how much of the machine others used meanwhile."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

from .._version import __version__

PACKAGES = ("mpi4py", "numpy", "h5py", "click", "cupy-cuda12x", "cupy-cuda13x")
FOREIGN_LIMIT = 0.05  # share of the CPUs used by others above which times are doubtful


def versions() -> dict[str, str | None]:
    """Versions of this package, Python and what it builds on; None for what is not installed."""
    return {"mpicomp": __version__, "python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def ranks(comm: Any) -> list[dict[str, Any]]:
    """Every rank's host, local rank, process id and the CPUs it may run on (collective)."""
    here = {"rank": comm.rank, "host": socket.gethostname(), "pid": os.getpid(), "cpus": cpu_list()}
    everyone: list[dict[str, Any]] = comm.allgather(here)
    seen: Counter[str] = Counter()
    for one in everyone:
        one["local_rank"] = seen[one["host"]]
        seen[one["host"]] += 1
    return everyone


def cpu_list() -> list[int]:
    """The CPUs this process may run on, in ascending order."""
    return sorted(os.sched_getaffinity(0))


def nodes(table: list[dict[str, Any]]) -> list[str]:
    """The hosts in a table of ranks, each once."""
    return list(dict.fromkeys(one["host"] for one in table))


def binding(table: list[dict[str, Any]]) -> str:
    """How the ranks of the first node are bound: "none" when they may all run on the same CPUs."""
    masks = [tuple(one["cpus"]) for one in table if one["host"] == table[0]["host"]]
    if len(masks) == 1 or len(set(masks)) == 1:
        return "none"
    return "disjoint" if sum(map(len, masks)) == len(set().union(*masks)) else "overlapping"


def oversubscribed(table: list[dict[str, Any]]) -> str | None:
    """The worst node on which ranks outnumber the CPUs they may use, in words; None where there is none."""
    for host in nodes(table):
        here = [one for one in table if one["host"] == host]
        cpus = len(set().union(*(one["cpus"] for one in here)))
        if len(here) > cpus:
            return f"{len(here)} ranks on {cpus} CPUs of {host}"
    return None


class Noise:
    """The share of this node's CPU time that went to processes of others, from construction to ``share``."""

    def __init__(self) -> None:
        self._busy, self._own, self._start = _busy_seconds(), _own_seconds(), time.monotonic()

    def share(self, comm: Any) -> float:
        """The worst node's share (collective)."""
        own, busy = _own_seconds() - self._own, _busy_seconds() - self._busy
        elapsed = time.monotonic() - self._start
        everyone = comm.allgather((socket.gethostname(), own, busy, elapsed))
        hosts = {host for host, *_ in everyone}
        return max(self._of_node([one for one in everyone if one[0] == host]) for host in hosts)

    @staticmethod
    def _of_node(here: list[tuple[str, float, float, float]]) -> float:
        _, _, busy, elapsed = here[0]
        foreign = busy - sum(own for _, own, *_ in here)
        return max(0.0, foreign / (elapsed * (os.cpu_count() or 1)))


def _own_seconds() -> float:
    used = os.times()
    return used.user + used.system


def _busy_seconds() -> float:
    """CPU seconds all processes of this machine have used: user, nice, system, interrupts, stolen."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
