"""A plain mpi4py training loop with compressed gradients: mpirun -n 4 python drop_in.py [SCHEME]"""

import sys

import numpy as np
from mpi4py import MPI

import mpicomp

scheme = sys.argv[1] if len(sys.argv) > 1 else "scalecom:chunk=10,beta=0.5"
comm = mpicomp.Comm(MPI.COMM_WORLD)  # instead of MPI.COMM_WORLD: every method of mpi4py works
reducer = mpicomp.Reducer(comm, scheme)

# Least squares: every rank has its own rows of the same problem.
random = np.random.default_rng([7, comm.rank])
truth = np.linspace(-1, 1, 500)
rows = random.standard_normal((1000, 500))
targets = rows @ truth

x = np.zeros(500)
for _ in range(300):
    batch = random.integers(0, len(rows), 128)
    grad = rows[batch].T @ (rows[batch] @ x - targets[batch]) / len(batch)
    x -= 0.05 * reducer.reduce(grad)  # instead of Allreduce and a division by the size

error = np.linalg.norm(x - truth) / np.linalg.norm(truth)
sent = comm.allreduce(reducer.stats.bytes_sent) / comm.size
if comm.rank == 0:
    print(f"{scheme}: relative error {error:.1e}, {sent:.0f} bytes per rank and step, vector {x.nbytes} bytes")
