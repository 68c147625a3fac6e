"""FSDP2 and HSDP with compressed collectives, over a Gloo mesh of the same ranks."""

import copy
import os

import needs_torch  # noqa: F401
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

import mpicomp
from mpicomp._util.partition import partition
from mpicomp.errors import Disagreement, InvalidArgument, NonFiniteGradient
from mpicomp.torch import compress

torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def gloo(comm, tmp_path_factory):
    """PyTorch's own process group over the same ranks."""
    path = comm.bcast(str(tmp_path_factory.mktemp("gloo") / "store") if comm.rank == 0 else None)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = torch.distributed.FileStore(path, comm.size)
    torch.distributed.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)
    yield
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


class Layer(nn.Module):
    """Weights whose gradients are the factors given: integers, so that every order of sums has the same bits.

    Their first dimensions are multiples of few numbers of ranks: most shards are padded.
    """

    SHAPES = ((5, 4), (7,), (3, 2, 2), (1, 6))

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(shape)) for shape in self.SHAPES)

    def forward(self, factors):
        return sum((weight * factor).sum() for weight, factor in zip(self.weights, factors, strict=True))


class Model(nn.Module):
    """Two layers, each a unit, and a weight that the root's unit has."""

    def __init__(self, layer=Layer):
        super().__init__()
        self.first, self.second = layer(), layer()
        self.scale = nn.Parameter(torch.ones(6, 3))

    def forward(self, factors):
        half = len(factors) // 2
        return self.first(factors[:half]) + self.second(factors[half:-1]) + (self.scale * factors[-1]).sum()


def mesh_of(comm, replicas):
    """A mesh of all ranks; of shards alone without ``replicas``."""
    if not replicas:
        return init_device_mesh("cpu", (comm.size,))
    return init_device_mesh("cpu", (replicas, comm.size // replicas), mesh_dim_names=("replicas", "shards"))


def sharded(comm, replicas=0, model=None, mesh=None, **options):
    model, mesh = Model() if model is None else model, mesh or mesh_of(comm, replicas)
    for layer in (model.first, model.second):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


SHAPES = [*Layer.SHAPES, *Layer.SHAPES, (6, 3)]


def factors(comm, seed, step, most=8, dtype=torch.float32):
    """This rank's, multiples of the number of ranks."""
    generator = torch.Generator().manual_seed(seed + 100 * step + comm.rank)
    return [comm.size * torch.randint(-most, most + 1, shape, generator=generator).to(dtype) for shape in SHAPES]


def step_of(model, own):
    model.zero_grad()
    model(own).backward()
    return [parameter.grad.to_local().clone() for parameter in model.parameters()]


def equal(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


WAYS = {"shards": 0, "one replica": 1, "replicas of two shards": 2, "replicas of one shard": -1}


@pytest.fixture(params=WAYS)
def replicas(request, comm):
    wanted = comm.size if WAYS[request.param] == -1 else WAYS[request.param]
    if wanted and comm.size % wanted:
        pytest.skip("no such mesh")
    return wanted


@pytest.mark.parametrize("options", [{}, {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)},
                                     {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                                                        reduce_dtype=torch.float32)},
                                     {"reshard_after_forward": False}, {"offload_policy": CPUOffloadPolicy(False)}],
                         ids=["float32", "bfloat16 gradients", "bfloat16 parameters", "unsharded", "offloaded"])
def test_dense_has_the_bits_of_plain_fsdp(comm, seed, replicas, options):
    plain, compressed = sharded(comm, replicas, **options), sharded(comm, replicas, **options)
    compression = compress(compressed, "dense")
    for step in range(3):
        own = factors(comm, seed, step, most=2)
        assert equal(step_of(plain, own), step_of(compressed, own)), step
    compression.close()
    own = factors(comm, seed, 3, most=2)
    assert equal(step_of(plain, own), step_of(compressed, own))
