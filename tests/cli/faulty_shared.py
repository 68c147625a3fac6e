"""Ranks that leave in the middle of shared-memory all-reduces: ``faulty_shared.py killed | raises``."""

import os
import signal
import sys

from mpi4py import MPI

import mpicomp

comm = mpicomp.Comm(MPI.COMM_WORLD)
vector = comm.empty(1 << 20)
vector[:] = 1
for turn in range(1000):
    if turn == 5 and comm.rank == 0:
        print("pid", os.getpid(), flush=True)
    if turn == 20 and comm.rank == comm.size - 1:
        if sys.argv[1] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("this rank has had enough")
    comm.Allreduce(MPI.IN_PLACE, vector, MPI.MAX, algorithm="node_shared")
