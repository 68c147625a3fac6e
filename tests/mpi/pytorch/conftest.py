"""Fixture of the tests of backend mpicomp: the default process group of all ranks."""

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
