"""Default process groups of all ranks: backend mpicomp, and PyTorch's Gloo."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import pytest


@pytest.fixture(scope="module")
def group():
    """The default process group, every call of which is compared."""
    import torch.distributed as dist

    import mpicomp.torch  # noqa: F401

    os.environ["MPICOMP_CHECK"] = "1"
    hook = sys.excepthook  # which PyTorch replaces
    dist.init_process_group("mpicomp", timeout=timedelta(seconds=300))
    sys.excepthook = hook
    del os.environ["MPICOMP_CHECK"]
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def gloo(comm, tmp_path_factory):
    """PyTorch's own process group over the same ranks."""
    import torch.distributed as dist

    path = comm.bcast(str(tmp_path_factory.mktemp("gloo") / "store") if comm.rank == 0 else None)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.FileStore(path, comm.size), rank=comm.rank, world_size=comm.size)
    yield
    dist.barrier()
    dist.destroy_process_group()
