"""PyTorch's buckets with ``nodes=yes``, in threads beside backward."""

import needs_torch  # noqa: F401
import pytest
import torch

from mpicomp import Comm
from mpicomp.torch import DistributedOptimizer

torch.set_num_threads(1)


@pytest.mark.parametrize("scheme", ["dense", "scalecom:chunk=4", "topk:density=0.3"])
def test_buckets_are_averaged_over_nodes(world, monkeypatch, scheme):
    """All ranks keep one model; what dense steps learn is what one rank learns of the mean."""
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "2")
    comm, models = Comm(world), []
    for text in (f"{scheme}{',' if ':' in scheme else ':'}nodes=yes", scheme):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 3))
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
                                         comm=comm, scheme=text, bucket_bytes=1000)
        for step in range(4):
            generator = torch.Generator().manual_seed(100 * step + comm.rank)
            optimizer.zero_grad()
            model(torch.randn(8, 20, generator=generator)).square().sum().backward()
            optimizer.step()
        flat = torch.cat([one.detach().flatten() for one in model.parameters()]).numpy()
        assert world.bcast(flat.tobytes()) == flat.tobytes()
        optimizer.close()
        models.append(torch.from_numpy(flat))
    if scheme == "dense" or comm.levels is None:
        torch.testing.assert_close(*models)
    comm.Free()
