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
        self.steps, self.diloco, self.lost, self.norms = STEPS, None, [], set()
        # Without a delay the ranks are twins: survivors have the same error memory.
        self.random = np.random.default_rng(world.rank if delay else 0)

    @property
    def step(self):
        return self.diloco.steps if self.diloco else 0

    def begin(self, comm, loss):
        if loss and loss.step:
            if IN_RECOVERY:
                os.environ["MPICOMP_FAULT"] = IN_RECOVERY  # counts calls from here
                self.norms.add(self.diloco.memory_norm())
            self.diloco.replace_comm(comm)
            self.norms.add(self.diloco.memory_norm())
            self.lost += loss.ranks
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
IN_RECOVERY = "".join(sys.argv[4:])
job = Training(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
group = survivors.run(world, job)
state = job.diloco.state_dict()
theta = b"".join(value.tobytes() for name, value in state.items() if name.startswith(("theta/", "velocity/")))
memory = b"".join(value.tobytes() for name, value in state.items() if "/memory/" in name)
twins = zlib.crc32(memory) if sys.argv[2] == "0" and memory else 0
far = max(float(abs(value - 1).max()) for name, value in state.items() if name.startswith("theta/"))
print("END", world.rank, job.step, zlib.crc32(theta), twins, len(job.norms), f"{far:.3f}", sorted(job.lost), flush=True)
group.leave()
