"""A small PyTorch model trained by DistributedOptimizer on the GPU and, from the same start, on the CPU: same weights.

``python tests/gpu/torch_steps.py [cpu]``; also under mpiexec. Rank 0 prints one JSON line per scheme. ``cpu`` compares
the CPU with itself, which tries the script without a GPU.
"""

from __future__ import annotations

import copy
import json
import sys

import torch
from mpi4py import MPI
from torch import nn

import mpicomp
from mpicomp.torch import DistributedOptimizer

STEPS = 4
SCHEMES = ("dense", "scalecom:chunk=16,beta=0.5", "topk:density=0.05", "powersgd:rank=2")
TOLERANCE = 1e-3  # GPU and CPU multiply matrices in another order, and near ties may then be chosen otherwise


def trained(comm: mpicomp.Comm, model: nn.Module, scheme: str, device: str) -> torch.Tensor:
    """All weights after some steps on this rank's own batches."""
    model = copy.deepcopy(model).to(device)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = DistributedOptimizer(inner, model.named_parameters(), comm, scheme)
    generator = torch.Generator().manual_seed(7 + comm.rank)
    for _ in range(STEPS):
        x, y = (torch.randn(16, n, generator=generator).to(device) for n in (20, 5))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return torch.cat([parameter.detach().cpu().reshape(-1) for parameter in model.parameters()])


def main() -> int:
    device = "cpu" if "cpu" in sys.argv[1:] else "cuda"
    comm, failed = mpicomp.Comm(MPI.COMM_WORLD), 0
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5))
    for scheme in SCHEMES:
        expected, actual = (trained(comm, model, scheme, where) for where in ("cpu", device))
        worst = float((actual - expected).abs().max())
        failed += worst > TOLERANCE
        if comm.rank == 0:
            result = {"case": f"{scheme}, {comm.size} ranks", "difference": worst, "passed": worst <= TOLERANCE}
            print(json.dumps(result), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
