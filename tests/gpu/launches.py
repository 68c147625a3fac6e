"""Count a step's launches on a GPU, and the host's waits: ``python tests/gpu/launches.py [SCHEME ...]``.

Prints a row of docs/development/gpu.md's table per scheme (default: all), with the kernels on the CPU: minutes. Under
``mpirun`` that is what rank 0 does among the others.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from models import resnet50
from mpi4py import MPI

import mpicomp
from mpicomp.schemes import names

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stand_ins"))
from emulated_gpu import counts, emulate, on_device, on_host

STEPS = 2
DIVISOR = 64  # of the numbers of channels: launches do not depend on them, but for two more where top-k guesses first
TOLERANCE = 1e-5
COLUMNS = ("kernels", "cupy", "copies", "waits")


def gradients(seed, rank, step, shapes):
    rng = np.random.default_rng([seed, rank, step])
    return {f"tensor {i}": rng.integers(-48, 49, shape).astype(np.float32) for i, shape in enumerate(shapes)}


def steps_of(comm, scheme, seed, shapes, tolerance=0.0):
    """The counts of the last of some steps, all of which give what they give on the CPU."""
    here, there = mpicomp.Reducer(comm, scheme), mpicomp.Reducer(comm, scheme)
    held = {name: on_device(one) for name, one in gradients(seed, comm.rank, 0, shapes).items()}
    out = {name: on_device(np.zeros_like(one)) for name, one in held.items()}
    for step in range(STEPS):
        fresh = gradients(seed, comm.rank, step, shapes)
        expected = here.reduce(fresh)
        for name, one in fresh.items():
            held[name][...] = one
        counts.clear()
        there.reduce(held, out)
        largest = max(float(np.abs(one).max(initial=0)) for one in expected.values())
        for name, one in expected.items():
            np.testing.assert_allclose(on_host(out[name]), one, rtol=0, atol=tolerance * largest)
    return dict(counts)


def main(schemes: list[str]) -> int:
    comm = mpicomp.Comm(MPI.COMM_WORLD)
    comm._engine.link.takes_devices = False
    with emulate():
        for scheme in schemes or (name for name in names() if name != "auto"):
            seen = steps_of(comm, scheme, 2024, resnet50(DIVISOR), TOLERANCE)
            if comm.rank == 0:
                print("|", " | ".join([f"`{scheme}`", *(str(seen.get(what, 0)) for what in COLUMNS)]), "|", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
