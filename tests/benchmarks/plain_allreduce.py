"""plain_allreduce.c by mpi4py alone, without us: what of a difference between C and the bench is Python's.

plain_allreduce.py ROUNDS STEPS BYTES...   medians over rounds of the slowest rank's mean of STEPS calls, in us, as JSON
"""

import json
import sys
from time import perf_counter

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rounds, steps, *sizes = map(int, sys.argv[1:])
medians = []
for nbytes in sizes:
    send, receive = np.zeros(nbytes // 4, np.float32), np.zeros(nbytes // 4, np.float32)
    local, slowest = np.empty(rounds), np.empty(rounds)
    for number in range(-rounds // 10 - 5, rounds):  # the negative ones warm up
        world.Barrier()
        start = perf_counter()
        for _ in range(steps):
            world.Allreduce(send, receive, MPI.SUM)
        if number >= 0:
            local[number] = (perf_counter() - start) / steps
    world.Reduce(local, slowest, MPI.MAX)
    medians.append(1e6 * float(np.sort(slowest)[rounds // 2]))
if world.rank == 0:
    print(json.dumps(medians))
