"""Program of the ranks of test_hosts.py: `job.py rate | ring | sleep`; rank 0 prints a line of JSON."""

import json
import socket
import sys
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD


def rate(nbytes=16 << 20, limit=2.0):
    """Bits per second in each direction of an exchange with a neighbour, the best of `limit` seconds.

    The best, because others may hold the machine's cores for a while; they can only make it slower.
    """
    out, into = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    seconds, end = [], time.perf_counter() + limit
    while comm.bcast(time.perf_counter() < end):
        comm.Barrier()
        start = time.perf_counter()
        comm.Sendrecv(out, comm.rank ^ 1, recvbuf=into, source=comm.rank ^ 1)
        seconds.append(time.perf_counter() - start)
    return {"bits_per_second": 8 * nbytes / comm.allreduce(min(seconds), MPI.MAX)}


def ring(n=100_003):
    """Compare `ring` with mpi4py's all-reduce on every rank; return the verdict and the host names."""
    import mpicomp

    x = (np.arange(n) % 64 + comm.rank).astype(np.float32)
    expected, got = np.empty_like(x), np.empty_like(x)
    comm.Allreduce(x, expected)
    mpicomp.Comm(comm).Allreduce(x, got, algorithm="ring")
    equal = comm.allreduce(bool(np.array_equal(expected, got)), MPI.LAND)
    return {"equal": equal, "hosts": comm.allgather(socket.gethostname())}


def sleep():
    """Tell that all ranks are up, then wait to be killed."""
    comm.Barrier()
    if comm.rank == 0:
        print("up", flush=True)
    time.sleep(3600)  # longer than any limit of the tests


answer = {"rate": rate, "ring": ring, "sleep": sleep}[sys.argv[1]]()
if comm.rank == 0:
    print(json.dumps(answer))
