"""Two ranks train; in the third step rank 1's backward fails between its two buckets, and it goes on alone."""

import torch
from mpi4py import MPI

from mpicomp.torch import DistributedOptimizer


class Fails(torch.autograd.Function):
    """Hands a value on; backward fails."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise OSError("no memory")


first, last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 2)
model = torch.nn.Sequential(first, last)
optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), MPI.COMM_WORLD,
                                 "topk:density=0.5", bucket_bytes=72)
for step in range(6):
    fails = step == 3 and MPI.COMM_WORLD.rank == 1
    optimizer.zero_grad()
    hidden = first(torch.randn(4, 6))
    try:
        last(Fails.apply(hidden) if fails else hidden).pow(2).sum().backward()
    except OSError:
        continue
    optimizer.step()
print("END")
