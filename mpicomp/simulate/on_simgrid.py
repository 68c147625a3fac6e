"""Plays programs on a platform of SimGrid: messages meet on the links of a topology, of which :mod:`.network` has none.

What ranks do, the rates of their operations and of copies within a node are those of :mod:`.replay`; only when messages
arrive is SimGrid's to say (Casanova et al., "Versatile, scalable, and accurate simulation of distributed applications
and platforms", 2014). A process can simulate once with it, so that every play is a process of its own: ``python -m`` of
this module.
"""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..errors import InvalidArgument, MpicompError
from .link import Place
from .machine import Machine
from .program import Program, Say, silent
from .replay import Times
from .tape import DRAIN, POOL, RECEIVED, SEND, SENT, SYNC, WORK, XOR

T = TypeVar("T")
# A flow's latency and bandwidth are what the platform file says, and acknowledgements cost nothing.
USUAL = ("network/model:CM02", "network/crosstraffic:0", "surf/precision:1e-9")
MOST_RANKS = 1024  # each is a thread
NOTICE = 1  # byte that a message within a node sends: its receiver copies the rest
_ADORNED = r"\x1b\[[0-9;]*m|\[\d+\.\d+\] \S+:\d+: "  # colours, and where in SimGrid
MISSING = ("SimGrid's Python module is not installed: apt install python3-simgrid (for the system's Python) or "
           "pip install simgrid (which compiles it), or leave out --platform")


class Platform:
    """Plays programs like ``replay`` does, on a platform file.

    Parameters
    ----------
    path : path
        XML, https://simgrid.org/doc/latest/Platform.html. Rank 0 runs on the first host in the order of the names
        (numbers in them count as such), as many ranks on each as the machine has a node.
    options : sequence of str
        Of SimGrid, ``"network/model:SMPI"``; they come after ``USUAL``.

    Raises
    ------
    InvalidArgument
        SimGrid is not installed, or there is no such file.
    """

    def __init__(self, path: Path, options: tuple[str, ...] = ()) -> None:
        if find_spec("simgrid") is None:
            raise InvalidArgument(MISSING)
        if not path.is_file():
            raise InvalidArgument(f"--platform must be a platform file of SimGrid, got {path}, which is no file")
        for option in options:
            if ":" not in option:
                raise InvalidArgument(f"options of SimGrid are NAME:VALUE, such as network/model:SMPI, got {option!r}")
        self.path, self._options = path, (*USUAL, *options)

    def __call__(self, program: Program, machine: Machine, start: np.ndarray | None = None, say: Say = silent) -> Times:
        """Play ``program``; rank r begins at ``start[r]`` (all together at 0 without).

        Raises
        ------
        InvalidArgument
            More ranks than SimGrid is asked to play.
        MpicompError
            What SimGrid said against the platform: it has too few hosts, no route, or is no platform.
        """
        size = program.place.size
        if size > MOST_RANKS:
            raise InvalidArgument(f"on a platform of SimGrid at most {MOST_RANKS} ranks are played, got {size}: "
                                  "leave out --platform, or give fewer --ranks")
        say("played by SimGrid")
        job = Given(
            str(self.path), self._options, program.tables, program.uniform, program.place, machine.rates(),
            (machine.within.overhead, machine.between.overhead), machine.within.bandwidth,
            np.zeros(size) if start is None else start,
        )  # fmt: skip
        done = subprocess.run([sys.executable, "-m", __name__], input=pickle.dumps(job), capture_output=True)
        if done.returncode:
            said = re.sub(_ADORNED, "", done.stderr.decode(errors="replace")).strip().splitlines()
            reason = next((line for line in said if "Error" in line or "CRITICAL" in line), "".join(said[-1:]))
            raise MpicompError(f"cannot play {size} ranks on {self.path}: {reason}")
        finish, local = pickle.loads(done.stdout)
        return Times(finish, local)


class Given(NamedTuple):
    """Input of the process that simulates."""

    platform: str
    options: tuple[str, ...]
    tables: list[np.ndarray]
    uniform: bool
    place: Place
    rates: np.ndarray
    overheads: tuple[float, float]  # of messages within a node, and between nodes
    within: float  # bandwidth of copies
    start: np.ndarray


# ---- in the process that simulates

class Job:
    """All ranks as actors of SimGrid."""

    def __init__(self, simgrid: ModuleType, given: Given) -> None:
        place = given.place
        self.simgrid, self.size, self._per_node, self._given = simgrid, place.size, place.ranks_per_node, given
        self._rates, self._start = given.rates.tolist(), given.start.tolist()
        self.finish, self.local = np.zeros(self.size), np.zeros(self.size)
        engine = simgrid.Engine(["mpicomp", *(f"--cfg={option}" for option in given.options)])
        engine.load_platform(given.platform)
        hosts = sorted(engine.all_hosts, key=lambda host: _natural(host.name))
        if len(hosts) < place.nodes:
            raise SystemExit(f"expected at least {place.nodes} hosts, for {self._per_node} rank(s) each, "
                             f"got {len(hosts)}")
        on_node = np.bincount(np.arange(self.size) // self._per_node).tolist()
        self._barriers = [simgrid.Barrier(count) for count in on_node]
        self._actors = [simgrid.Actor.create(str(rank), hosts[rank // self._per_node], self._rank, rank)
                        for rank in range(self.size)]
        engine.run()

    def _events(self, rank: int) -> Iterator[list[int]]:
        """Kind, who, which, amount of a rank's events, peers by their numbers."""
        tables = self._given.tables
        if not self._given.uniform:
            yield from tables[rank].tolist()
            return
        for kind, who, which, amount in tables[0].tolist():
            if kind & ~XOR in (SEND, RECEIVED):
                who = rank ^ who if kind & XOR else (rank + who) % self.size
            yield [kind & ~XOR, who, which, amount]

    def _rank(self, rank: int) -> None:
        own, leaving = Clock(self.simgrid, self.local, rank), []
        own.sleep(self._start[rank])
        for kind, who, which, amount in self._events(rank):
            if kind == WORK:
                own.work(self._rates[who] * amount)
            elif kind == SEND:
                own.sleep(self._overhead(rank, who))
                box = self._box(rank, who, which)
                box.set_receiver(self._actors[who])  # so that it starts now, not with the receive
                leaving.append(box.put_async(amount, amount if self._outside(rank, who) else NOTICE))
            elif kind == SENT:
                own.wait(leaving[which].wait, amount)
                leaving[which] = None
            elif kind == RECEIVED:
                nbytes = own.wait(self._box(who, rank, which).get, amount)
                own.sleep(self._overhead(rank, who))
                if not self._outside(rank, who):
                    own.work(nbytes / self._given.within)
            elif kind == POOL:
                own.pool += self._rates[who] * amount
            elif kind == DRAIN:
                own.work(own.pool)
                own.pool = 0.0
            elif kind == SYNC:
                own.wait(self._barriers[rank // self._per_node].wait)
        self.finish[rank] = own.now

    def _overhead(self, rank: int, peer: int) -> float:
        return self._given.overheads[self._outside(rank, peer)]

    def _outside(self, rank: int, peer: int) -> bool:
        return rank // self._per_node != peer // self._per_node

    def _box(self, source: int, target: int, which: int) -> Any:
        return self.simgrid.Mailbox.by_name(f"{source} {target} {which}")


class Clock:
    """A rank's time, and the work it has in store for while it waits."""

    def __init__(self, simgrid: ModuleType, local: np.ndarray, rank: int) -> None:
        self._simgrid, self._local, self._rank, self.pool = simgrid, local, rank, 0.0

    @property
    def now(self) -> float:
        return self._simgrid.Engine.clock

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._simgrid.this_actor.sleep_for(seconds)

    def work(self, seconds: float) -> None:
        self.sleep(seconds)
        self._local[self._rank] += seconds

    def wait(self, until_done: Callable[[], T], idle: int = 0) -> T:
        begun = self.now
        brought = until_done()
        done = 0.0 if idle else min(self.now - begun, self.pool)
        self.pool -= done
        self._local[self._rank] += done
        return brought


def _natural(name: str) -> list[int | str]:
    """Return a sort key in which numbers count as such."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


if __name__ == "__main__":
    import simgrid

    job = Job(simgrid, pickle.load(sys.stdin.buffer))
    pickle.dump((job.finish, job.local), sys.stdout.buffer)
