"""Job of scale.py: memory before and after a Comm and a training; a line of JSON from rank 0."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import numpy as np
from mpi4py import MPI

import mpicomp
from mpicomp.apps import data, logreg
from mpicomp.apps.settings import Settings

world = MPI.COMM_WORLD
ROWS_OF_A_RANK, FEATURES = 32, 400


def most(value: float) -> float:
    return world.allreduce(value, MPI.MAX)


def resident() -> int:
    """Bytes this process alone holds in memory, and its part of what it shares (proportional set size)."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1])


def measured_comm() -> tuple[mpicomp.Comm, dict[str, int]]:
    """A Comm, and the bytes of Python's and NumPy's memory that making it kept and took; a first one warms up."""
    mpicomp.Comm(world).Free()
    tracemalloc.start()
    comm = mpicomp.Comm(world)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return comm, {"kept": int(most(kept)), "peak": int(most(peak))}


def main() -> None:
    memory = {"mpi": most(resident())}
    comm, sizes = measured_comm()
    memory["comm"] = most(resident())
    problem = data.share(comm, f"synthetic:n={ROWS_OF_A_RANK * world.size},d={FEATURES}")
    settings = Settings("scalecom:chunk=8", epochs=2, shift=0.01)
    result = logreg.train(comm, problem, settings)
    memory["training"] = most(resident())
    gaps = [one.gap for one in result.series]
    course = np.array(gaps)  # each rank's own: the regulariser is computed from its own x
    alike = world.allreduce(np.array_equal(course, world.bcast(course)), MPI.LAND)
    if world.rank == 0:
        print(json.dumps({
            "ranks": world.size, "comm_bytes": sizes, "bytes": memory, "gap_first": gaps[0], "gap_last": gaps[-1],
            "steps": result.steps, "alike": alike,
        }))  # fmt: skip


main()
