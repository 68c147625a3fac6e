"""The mean of the ranks' fields with an error bound: mpirun -n 4 python average_fields.py [BOUND]"""

import sys

import numpy as np
from mpi4py import MPI

import mpicomp

bound = float(sys.argv[1]) if len(sys.argv) > 1 else 1e-4
comm = mpicomp.Comm(MPI.COMM_WORLD)

# Every rank has its own realisation of a smooth field.
z, y, x = np.meshgrid(*[np.linspace(0, 6, 64, dtype=np.float32)] * 3, indexing="ij")
field = np.sin(x + 0.3 * comm.rank) * np.cos(2 * y) + np.sin(3 * z)

mean, exact = np.empty_like(field), np.empty_like(field)
comm.Allreduce(field, mean, mpicomp.AVG, bound=bound, relative=True, algorithm="two_hops")
stats = comm.bounded_stats

comm.Allreduce(field, exact)
exact /= comm.size
error = comm.allreduce(float(abs(mean - exact).max()), MPI.MAX)
if comm.rank == 0:
    print(f"error {error:.1e}, at most {stats.largest_error:.1e}; {stats.ratio:.1f} times fewer bytes")
