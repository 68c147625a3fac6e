"""A PyTorch model whose compressed gradients are sent during backward: mpirun -n 2 python torch_model.py"""

import torch
from mpi4py import MPI

import mpicomp
from mpicomp.torch import DistributedOptimizer

comm = mpicomp.Comm(MPI.COMM_WORLD)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = DistributedOptimizer(optimizer, model.named_parameters(), comm, "powersgd:rank=2")

data = torch.Generator().manual_seed(comm.rank)  # other data on every rank
first = last = None
for _ in range(60):
    x = torch.randn(32, 20, generator=data)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
    loss.backward()  # gradients are now means over all ranks
    optimizer.step()
    last = loss.item()
    first = last if first is None else first

optimizer.close()
if comm.rank == 0:
    print(f"loss {first:.2f} at first, {last:.2f} at last")
