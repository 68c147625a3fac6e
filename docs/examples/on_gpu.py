"""The same code on GPU and CPU: mpirun -n 2 python on_gpu.py [numpy]. The arrays decide where the work is done."""

import sys

import numpy as np
from mpi4py import MPI

import mpicomp

comm = mpicomp.Comm(MPI.COMM_WORLD)
if "numpy" in sys.argv[1:]:
    xp = np
else:
    import cupy as xp  # pip install 'mpicomp[cuda13]'

    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    xp.cuda.Device(node.rank % xp.cuda.runtime.getDeviceCount()).use()  # one GPU per rank, if there are enough

# Dense: device arrays go to MPI directly if MPI reports CUDA support, otherwise through pinned host memory.
x = xp.full(1 << 20, comm.rank + 1, xp.float32)
comm.Allreduce(MPI.IN_PLACE, x)
assert bool((x == comm.size * (comm.size + 1) // 2).all())

# Compressed: selection, coding and error memory stay on the device; about 1 % of the vector leaves it.
reducer = mpicomp.Reducer(comm, "scalecom:chunk=100")
gradients = {"weight": xp.ones((512, 1024), xp.float32), "bias": xp.ones(1024, xp.float32)}
mean = reducer.reduce(gradients)
assert isinstance(mean["weight"], xp.ndarray)
assert mean["weight"].shape == (512, 1024)

sent = comm.allreduce(reducer.stats.bytes_sent)
if comm.rank == 0:
    print(f"{xp.__name__}: sum {float(x[0]):g}; {sent} bytes sent by {comm.size} ranks")
