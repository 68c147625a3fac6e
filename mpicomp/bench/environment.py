"""Circumstances of a measurement: versions, ranks, CPUs, and the share of the CPUs that other processes used."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypedDict

from .._util.versions import version_of
from .._version import __version__

PACKAGES = ("mpi4py", "numpy", "h5py", "click", "cupy-cuda12x", "cupy-cuda13x")
FOREIGN_LIMIT = 0.05  # share of the CPUs used by others above which times are doubtful


class Ranks(Protocol):
    """The methods of a communicator (mpi4py's or ``Comm``) that are needed here."""

    @property
    def rank(self) -> int: ...

    def allgather(self, sendobj: Any) -> list[Any]: ...


class Gpu(TypedDict):
    """A GPU as one process sees it."""

    number: int
    name: str
    uuid: str
    visible: str | None  # CUDA_VISIBLE_DEVICES


class _Place(TypedDict):
    rank: int
    host: str
    pid: int
    cpus: list[int]
    local_rank: int


class Rank(_Place, total=False):
    """The place of one rank; ``gpu`` only if the arrays are on one."""

    gpu: Gpu | None


def versions() -> dict[str, str | None]:
    """Versions of this package, Python and the dependencies; None for a package that is not installed."""
    packages = {name: version_of(name) for name in PACKAGES}
    return {"mpicomp": __version__, "python": platform.python_version(), **packages}


def ranks(comm: Ranks) -> list[Rank]:
    """Every rank's host, local rank, process id and allowed CPUs (collective)."""
    everyone = comm.allgather((socket.gethostname(), os.getpid(), sorted(os.sched_getaffinity(0))))
    seen: Counter[str] = Counter()
    table: list[Rank] = []
    for rank, (host, pid, cpus) in enumerate(everyone):
        table.append({"rank": rank, "host": host, "pid": pid, "cpus": cpus, "local_rank": seen[host]})
        seen[host] += 1
    return table


def nodes(table: Sequence[Rank]) -> list[str]:
    """The hosts in a table of ranks, each once."""
    return list(dict.fromkeys(one["host"] for one in table))


def binding(table: Sequence[Rank]) -> str:
    """Binding of the ranks on the first node: none (all have the same CPUs), disjoint or overlapping."""
    masks = [tuple(one["cpus"]) for one in table if one["host"] == table[0]["host"]]
    if len(set(masks)) == 1:
        return "none"
    return "disjoint" if sum(map(len, masks)) == len(set().union(*masks)) else "overlapping"


def oversubscribed(table: Sequence[Rank]) -> str | None:
    """The first node with more ranks than CPUs for them, in words; None if there is none."""
    for host in nodes(table):
        here = [one for one in table if one["host"] == host]
        cpus = len(set().union(*(one["cpus"] for one in here)))
        if len(here) > cpus:
            return f"{len(here)} ranks on {cpus} CPUs of {host}"
    return None


class Noise:
    """The share of this node's CPU time that other processes used, from construction to ``share``."""

    def __init__(self) -> None:
        self._busy, self._own, self._start = _busy_seconds(), _own_seconds(), time.monotonic()

    def share(self, comm: Ranks) -> float:
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
    """CPU seconds of all processes of this machine: user, nice, system, interrupts, stolen."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
