"""Two ranks train; the data loader of rank 1 dies or stalls in the third step (argument: dead, slow)."""

import sys
import time

import torch
from mpi4py import MPI

from mpicomp.torch import DistributedOptimizer


def batches(how):
    for step in range(6):
        if step == 3 and MPI.COMM_WORLD.rank == 1:
            if how == "dead":
                raise OSError("batch 3 cannot be read")
            time.sleep(3600)  # longer than the limit of the test
        yield torch.randn(4, 6)


model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 2))
optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), MPI.COMM_WORLD,
                                 "topk:density=0.5", bucket_bytes=100)
for x in batches(sys.argv[1]):
    optimizer.zero_grad()
    model(x).pow(2).sum().backward()
    optimizer.step()
print("END")
