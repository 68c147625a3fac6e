"""Job of test_monitored_bytes.py: one collective of ours; each rank prints the bytes that ``Comm.traffic`` counted."""

from __future__ import annotations

import os
import sys

import numpy as np
from mpi4py import MPI

import mpicomp

os.environ["MPICOMP_CHECK"] = "0"  # messages of comparisons are not counted as traffic,
os.environ["MPICOMP_TIMEOUT"] = "0"  # nor are those of watchdogs, which say goodbye at exit
comm = mpicomp.Comm(MPI.COMM_WORLD)
comm._engine.link.one_node = False  # take the schedules of a network
what = sys.argv[1]
if what == "broadcast":
    comm.broadcast(np.ones(228_123, np.uint8), 1)
elif what == "gather_to_all":
    comm.gather_to_all(np.ones(30_000 * (comm.rank + 1), np.float32))
elif what == "short gather_to_all":
    comm.gather_to_all(np.ones(3 * comm.rank, np.float32))
else:
    comm.Allreduce(MPI.IN_PLACE, np.ones(1_000_003, np.float32), algorithm=what)
used = comm.traffic
print(f"rank {comm.rank} sent {used.bytes_sent - used.modelled} messages {used.messages} modelled {used.modelled}",
      flush=True)  # fmt: skip
