"""One rank with PyTorch. (The folder is not called torch: without PyTorch, Python would take it for that.)"""

import os

import numpy as np
import pytest

os.environ.setdefault("MPICOMP_ALLOW_SINGLETON", "1")


@pytest.fixture(scope="session")
def comm():
    from mpi4py import MPI

    import mpicomp

    return mpicomp.Comm(MPI.COMM_SELF)


@pytest.fixture(autouse=True)
def seed():
    """Fresh random numbers, shown when a test fails and set by MPICOMP_SEED."""
    drawn = int(os.environ.get("MPICOMP_SEED", np.random.SeedSequence().entropy % 2**31))
    print(f"MPICOMP_SEED={drawn}")
    import torch

    torch.manual_seed(drawn)
    torch.set_num_threads(1)
    return drawn
