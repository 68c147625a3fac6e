"""One rank of test_diloco_survivors.py: DiLoCo on a quadratic that may lose ranks; prints END with its result."""

import os
import sys
import time
import zlib

import numpy as np
from mpi4py import MPI

from mpicomp import survivors
from mpicomp.optim import DiLoCo

EVERY, STEPS = 4, 120


class Training:
    """A job of ``mpicomp.survivors``: a step is an inner step."""

    def __init__(self, scheme, delay, fragments):
        self.settings = {"scheme": scheme, "delay": delay, "fragments": fragments}
        self.steps, self.diloco, self.lost = STEPS, None, []
        self.random = np.random.default_rng(world.rank)

    @property
    def step(self):
        return self.diloco.steps if self.diloco else 0

    def begin(self, comm, loss):
        self.lost += loss.ranks if loss else []
        if loss and loss.step:
            self.diloco.replace_comm(comm)
            return
        self.weights = {"matrix": np.zeros((30, 20)), "vector": np.zeros(50)}
        self.diloco = DiLoCo(self.weights, comm, EVERY, **self.settings)
        print("READY", world.rank, os.getpid(), flush=True)

    def advance(self):
        for value in self.weights.values():
            value -= 0.05 * (value - 1 + 0.1 * self.random.standard_normal(value.shape))
        time.sleep(0.005)
        self.diloco.step()


world = MPI.COMM_WORLD
job = Training(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
group = survivors.run(world, job)
state = job.diloco.state_dict()
theta = b"".join(value.tobytes() for name, value in state.items() if name.startswith(("theta/", "velocity/")))
far = max(float(abs(value - 1).max()) for name, value in state.items() if name.startswith("theta/"))
print("END", world.rank, job.step, zlib.crc32(theta), f"{far:.3f}", sorted(job.lost), flush=True)
group.leave()
