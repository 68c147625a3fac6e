"""One rank of soak_ft.py: logistic regression that may lose ranks; prints READY, STEP, and END with its result."""

import faulthandler
import json
import os
import signal
import sys
import zlib

from mpi4py import MPI

from mpicomp import survivors
from mpicomp.apps import data
from mpicomp.apps.fault_tolerant import Training
from mpicomp.apps.settings import Settings
from mpicomp.trace import NullRecorder


class Told(Training):
    """A training that prints when it first begins, and its progress."""

    def begin(self, comm, loss):
        if loss is None:
            print("READY", world.rank, os.getpid(), flush=True)
        super().begin(comm, loss)

    def advance(self):
        super().advance()
        if self.step % 10 == 0:
            print("STEP", world.rank, self.step, flush=True)


faulthandler.register(signal.SIGUSR1)  # where it hangs, for whoever asks
world = MPI.COMM_WORLD
settings = Settings(scheme=sys.argv[1], workers=8, epochs=int(sys.argv[2]))
job = Told(data.load("synthetic:n=400,d=100,seed=1"), settings, world.size, NullRecorder())
group = survivors.run(world, job)
lost = sorted(rank for loss in job.losses for rank in loss["ranks"])
print("END", world.rank, job.step, zlib.crc32(job.run.x.tobytes()), json.dumps(lost), flush=True)
group.leave()
