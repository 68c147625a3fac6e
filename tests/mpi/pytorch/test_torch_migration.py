"""Both sides of each diff of docs/howto/migrate.md run, and train the same model if the page says so."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
from pathlib import Path
from types import ModuleType

import needs_torch  # noqa: F401
import numpy as np
import pytest
import torch
from mpi4py import MPI

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "migrate.md"

torch.set_num_threads(1)


def sides(title):
    """Return the script before and after the diff below a heading of the page."""
    section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1]
    lines = re.search(r"^```diff\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[1].splitlines()
    assert {line[:1] for line in lines} == {" ", "-", "+"}
    return tuple("\n".join(line[1:] for line in lines if line[0] in (" ", sign)) for sign in "-+")


def run(script):
    names = {}
    exec(compile(script, str(PAGE), "exec"), names)
    return names


def vector(names):
    return np.concatenate([value.detach().numpy().ravel() for value in names["model"].parameters()])


class HorovodsOptimizer:
    """Stand-in for Horovod's optimizer, as far as the page's script uses it: means of gradients, once for each step."""

    def __init__(self, optimizer, named_parameters):
        self.inner, self.named = optimizer, list(named_parameters)
        self.zero_grad = optimizer.zero_grad
        self.is_mean = False

    def synchronize(self):
        for _, parameter in self.named:
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())
            parameter.grad /= MPI.COMM_WORLD.size
        self.is_mean = True

    @contextlib.contextmanager
    def skip_synchronize(self):
        yield

    def step(self):
        assert self.is_mean
        self.is_mean = False
        self.inner.step()


@pytest.fixture
def horovod(monkeypatch):
    """A stand-in: Horovod itself is not among the test requirements."""

    def broadcast_parameters(state, root_rank):
        for value in state.values():
            MPI.COMM_WORLD.Bcast(value.numpy(), root_rank)

    def allreduce(value):
        return torch.tensor(MPI.COMM_WORLD.allreduce(value.item()) / MPI.COMM_WORLD.size)

    parts = {"init": lambda: None, "rank": MPI.COMM_WORLD.Get_rank, "size": MPI.COMM_WORLD.Get_size,
             "DistributedOptimizer": HorovodsOptimizer, "broadcast_parameters": broadcast_parameters,
             "broadcast_optimizer_state": lambda optimizer, root_rank: None, "allreduce": allreduce}  # fmt: skip
    package, module = ModuleType("horovod"), ModuleType("horovod.torch")
    package.torch = module
    for name, part in parts.items():
        setattr(module, name, part)
    monkeypatch.setitem(sys.modules, "horovod", package)
    monkeypatch.setitem(sys.modules, "horovod.torch", module)


def test_horovod(horovod):
    before, after = (run(script) for script in sides("Horovod"))
    after["optimizer"].close()
    assert after["loss"] < 0.7
    np.testing.assert_allclose(vector(after), vector(before), rtol=1e-4, atol=1e-5)
    assert float(before["loss"]) == pytest.approx(after["loss"], rel=1e-4)


class DeepSpeedsEngine:
    """Stand-in for DeepSpeed's engine, with Adam on exact means in the place of 1-bit Adam."""

    def __init__(self, model, config):
        self.module, self.parameters = model, model.parameters
        assert config["optimizer"]["type"] == "OneBitAdam"
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config["optimizer"]["params"]["lr"])

    def __call__(self, batch):
        return self.module(batch)

    def backward(self, loss):
        self.optimizer.zero_grad()
        loss.backward()

    def step(self):
        for parameter in self.parameters():
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())
            parameter.grad /= MPI.COMM_WORLD.size
        self.optimizer.step()


@pytest.fixture
def deepspeed(monkeypatch):
    """A stand-in, as Horovod's."""
    module = ModuleType("deepspeed")
    module.init_distributed = lambda backend: None
    module.initialize = lambda model, model_parameters, config: (DeepSpeedsEngine(model, config), None, None, None)
    monkeypatch.setitem(sys.modules, "deepspeed", module)
    monkeypatch.setattr(torch.distributed, "get_rank", MPI.COMM_WORLD.Get_rank)
    monkeypatch.setattr(torch.distributed, "get_world_size", MPI.COMM_WORLD.Get_size)


def test_deepspeed(deepspeed):
    """With one bit per element in four steps of five, the model is nearly as good as Adam's."""
    before, after = (run(script) for script in sides("DeepSpeed 1-bit Adam"))
    assert before["loss"].item() < 0.1 and after["loss"].item() < 0.2
    assert after["optimizer"].reducers["momentum"].stats.payload_bits < 0.2 * 32 * vector(after).size


@pytest.fixture
def rendezvous(comm, monkeypatch):
    """Environment variables that torchrun would set."""
    with socket.create_server(("localhost", 0)) as free:
        port = comm.bcast(free.getsockname()[1])
    for name, value in {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "RANK": comm.rank, "WORLD_SIZE": comm.size,
                        "GLOO_SOCKET_IFNAME": "lo"}.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))


def test_ddp_with_powersgd(rendezvous):
    """Their PowerSGD differ in their random first factors, so both learn, and no more can be asked."""
    before, after = (run(script) for script in sides("DDP communication hooks"))
    assert max(before["loss"].item(), after["loss"].item()) < 0.2
