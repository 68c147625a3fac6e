"""Very many steps and all-reduces: memory, communicators, requests and shared memory must not grow.

    mpirun -n 2 python tests/soak/soak.py [--steps 100000] [--length 5000] [--minutes N] [--scheme NAME ...]

Every rank makes the steps of each scheme, by turns with small all-reduces of many lengths and some in flight. It
measures itself after a tenth of the steps, when everything has been used, and at the end (earlier with ``--minutes``).
Compared are resident memory, Python objects (requests and communicators by themselves), open files, threads
and mapped segments of /dev/shm. MPICH has some 2000 communicators: 100 000 steps make as many, so a leak in MPI itself
ends the run there. ``--tick`` lets the watchdog call MPI all the time, which it otherwise does only for a rank
that makes no progress: to find out whether threads disturb each other.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicomp
from mpicomp.comm.safety import watchdog

SCHEMES = ("topk:density=0.01", "scalecom:chunk=100", "gtopk:density=0.01", "oktopk:density=0.01", "powersgd:rank=2",
           "onebit", "qsgd", "terngrad", "half", "sketchsgd:density=0.001")  # fmt: skip
MEMORY_GROWTH = 8 << 20  # bytes; limit per rank at the end
OBJECT_GROWTH = 500
BLOCK = 1000  # steps between looks at the clock


def looked_at() -> dict[str, int]:
    """Counters that a leak would let grow."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "memory": 1024 * int(status["VmRSS"].split()[0]), "threads": int(status["Threads"]),
        "objects": len(gc.get_objects()), "files": len(os.listdir("/proc/self/fd")),
        "segments": sum("mpicomp-" in line for line in maps),
        "requests": sum(isinstance(one, MPI.Request) for one in gc.get_objects()),
        "communicators": sum(isinstance(one, MPI.Comm) for one in gc.get_objects()),
    }  # fmt: skip


PARTS = ("steps", "allreduce", "inflight", "shared", "communicators")


def work(comm: Any, reducers: list[Any], gradient: np.ndarray, steps: range, parts: set[str]) -> None:
    small = [np.ones(n, np.float32) for n in range(1, 100, 7)]
    for step in steps:
        if "steps" in parts:
            reducers[step % len(reducers)].reduce(gradient, out=None)
        if "allreduce" in parts:
            comm.Allreduce(MPI.IN_PLACE, small[step % len(small)])
            small[step % len(small)][:] = 1
        pending = comm.Iallreduce(MPI.IN_PLACE, small[0]) if step % 50 == 0 and "inflight" in parts else None
        if step % 50 == 0 and "shared" in parts:
            comm.empty(1000)  # shared memory that is given back with the array
        if pending:
            pending.Wait()
            small[0][:] = 1
        if step % 200 == 0 and "communicators" in parts:
            mpicomp.Comm(comm).Free()


def run(comm: Any, reducers: list[Any], options: argparse.Namespace, parts: set[str]) -> tuple[int, dict, dict]:
    """Steps done, and what a rank saw of itself after a tenth of them and at the end."""
    gradient = np.random.default_rng(comm.rank).standard_normal(options.length).astype(np.float32)
    warm, done, before = max(1, options.steps // 10), 0, {}
    end = time.monotonic() + 60 * options.minutes
    while done < options.steps:
        upto = min(done + BLOCK, options.steps, warm if done < warm else options.steps)
        work(comm, reducers, gradient, range(done, upto), parts)
        done = upto
        if done == warm:
            before = looked_at()
        if comm.rank == 0:
            print(f"{done} steps, {looked_at()['memory'] >> 10} KiB", file=sys.stderr, flush=True)
        if before and comm.bcast(time.monotonic() > end, 0):
            break
    return done, before, looked_at()


def speak_all_the_time(tick: float) -> None:
    """Let the thread of the watchdog look for messages every ``tick`` seconds, whatever the rank does."""
    watchdog._watchdog.tick = tick
    watchdog.Watched._makes_no_progress = lambda watched: True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--length", type=int, default=5000, help="elements of a gradient")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so long, when warm")
    parser.add_argument("--scheme", action="append", help="by turns; may be repeated")
    parser.add_argument("--leave-out", action="append", default=[], choices=PARTS, help="to find out what leaks")
    parser.add_argument("--tick", type=float, help="seconds between the looks of the watchdog's thread for messages")
    options = parser.parse_args()
    parts = set(PARTS) - set(options.leave_out)
    comm = mpicomp.Comm(MPI.COMM_WORLD)
    if options.tick:
        speak_all_the_time(options.tick)
    reducers = [mpicomp.Reducer(comm, scheme) for scheme in options.scheme or SCHEMES]
    done, before, after = run(comm, reducers, options, parts)
    grown = {name: after[name] - before[name] for name in after}
    bad = [name for name, more in grown.items()
           if more > {"memory": MEMORY_GROWTH, "objects": OBJECT_GROWTH}.get(name, 1)]  # fmt: skip
    everyone = comm.gather({"rank": comm.rank, "before": before, "grown": grown, "bad": bad}, 0)
    left = [name for name in os.listdir("/dev/shm") if name.startswith(f"mpicomp-{os.getpid()}-")]
    if comm.rank == 0:
        print(json.dumps({"steps": done, "ranks": comm.size, "left_in_shm": left, "by_rank": everyone}))
    return 1 if comm.allreduce(bool(bad or left), MPI.LOR) else 0


if __name__ == "__main__":
    sys.exit(main())
