"""One collective again and again: ``faulty_call.py WHAT TIMES``; MPICOMP_FAULT says what goes wrong."""

import sys
import time

import numpy as np
from mpi4py import MPI

import mpicomp
from mpicomp import allreduce

comm = mpicomp.Comm(MPI.COMM_WORLD)
x = np.ones(1000)
others = {
    "small": lambda: comm.Allreduce(MPI.IN_PLACE, x[:10]),
    "in-flight": lambda: comm.Iallreduce(MPI.IN_PLACE, x, algorithm="ring").Wait(),
    "broadcast": lambda: comm.broadcast(x, 0),
    "gather": lambda: comm.gather_to_all(x),
    "Barrier": lambda: comm.Barrier(),
    "bcast": lambda: comm.bcast({"a": 1}, root=0),
    "agree": lambda: comm.agree("the same"),
}
what = sys.argv[1]
if what in allreduce.names():
    call = lambda: comm.Allreduce(MPI.IN_PLACE, x, algorithm=what)  # noqa: E731
elif what in others:
    call = others[what]
elif what == "compute":  # one rank comes too late
    call = lambda: (comm.Allreduce(MPI.IN_PLACE, x[:10]), time.sleep(30 * (comm.rank == 1)))  # noqa: E731
else:
    reducer = mpicomp.Reducer(comm, what)
    call = lambda: reducer.reduce(x.reshape(20, 50))  # noqa: E731
for _ in range(int(sys.argv[2])):
    call()
print("END", flush=True)
