"""A small PyTorch model trained by DistributedOptimizer on the GPU and, from the same start, on the CPU: same weights.

``python tests/gpu/torch_steps.py [cpu]``; also under mpiexec. Rank 0 prints one JSON line per scheme. ``cpu`` compares
the CPU with itself, which tries the script without a GPU.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import mpicomp
from mpicomp.errors import InvalidArgument
from mpicomp.torch import DiLoCo, DistributedOptimizer, compress, ddp_hook

STEPS = 4
SCHEMES = ("dense", "scalecom:chunk=16,beta=0.5", "topk:density=0.05", "powersgd:rank=2")
TOLERANCE = 1e-3  # GPU and CPU multiply matrices in another order, and near ties may then be chosen otherwise


def batches(comm: mpicomp.Comm, device: str) -> Iterator[list[torch.Tensor]]:
    """This rank's own, one per step."""
    generator = torch.Generator().manual_seed(7 + comm.rank)
    for _ in range(STEPS):
        yield [torch.randn(16, n, generator=generator).to(device) for n in (20, 5)]


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().cpu().reshape(-1) for parameter in model.parameters()])


def trained(comm: mpicomp.Comm, model: nn.Module, scheme: str, device: str) -> torch.Tensor:
    """All weights after some steps on this rank's own batches."""
    model = copy.deepcopy(model).to(device)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = DistributedOptimizer(inner, model.named_parameters(), comm, scheme)
    for x, y in batches(comm, device):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return weights(model)


def with_hook(comm: mpicomp.Comm, model: nn.Module, scheme: str, device: str) -> torch.Tensor:
    """The same by DistributedDataParallel with a communication hook."""
    wrapped = nn.parallel.DistributedDataParallel(copy.deepcopy(model).to(device))
    hook = ddp_hook(comm, scheme, wrapped.named_parameters())
    wrapped.register_comm_hook(None, hook)
    inner = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    for x, y in batches(comm, device):
        inner.zero_grad()
        nn.functional.mse_loss(wrapped(x), y).backward()
        inner.step()
    hook.close()
    return weights(wrapped)


def by_rounds(comm: mpicomp.Comm, model: nn.Module, scheme: str, device: str) -> torch.Tensor:
    """The same by DiLoCo, with an exchange every two steps."""
    model = copy.deepcopy(model).to(device)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    diloco = DiLoCo(model, inner, comm, 2, scheme)
    for x, y in batches(comm, device):
        inner.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        inner.step()
        diloco.step()
    diloco.close()
    return weights(model)


def in_shards(comm: mpicomp.Comm, model: nn.Module, scheme: str, device: str) -> torch.Tensor:
    """The same by FSDP2, whose gradients are compressed."""
    model = copy.deepcopy(model).to(device)
    mesh = init_device_mesh(device, (comm.size,))
    fully_shard(model, mesh=mesh)
    compression = compress(model, scheme)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in batches(comm, device):
        inner.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        inner.step()
    whole = torch.cat([parameter.detach().full_tensor().cpu().reshape(-1) for parameter in model.parameters()])
    compression.close()
    return whole


CASES: tuple[tuple[Callable[[mpicomp.Comm, nn.Module, str, str], torch.Tensor], str], ...] = (
    *((trained, scheme) for scheme in SCHEMES),
    (with_hook, "dense"), (with_hook, "topk:density=0.05"), (by_rounds, "dense"), (by_rounds, "int8"),
    (in_shards, "dense"), (in_shards, "int8"),
)  # fmt: skip


def main() -> int:
    device = "cpu" if "cpu" in sys.argv[1:] else "cuda"
    comm, failed = mpicomp.Comm(MPI.COMM_WORLD), 0
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5))
    torch.distributed.init_process_group("mpicomp")
    for way, scheme in CASES:
        result: dict[str, Any] = {"case": f"{way.__name__.replace('_', ' ')}, {scheme}, {comm.size} ranks"}
        try:
            expected, actual = (way(comm, model, scheme, where) for where in ("cpu", device))
        except InvalidArgument as error:
            if "needs PyTorch" not in str(error):
                raise
            result |= {"left out": str(error)}
        else:
            worst = float((actual - expected).abs().max())
            failed += worst > TOLERANCE
            result |= {"difference": worst, "passed": worst <= TOLERANCE}
        if comm.rank == 0:
            print(json.dumps(result), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
