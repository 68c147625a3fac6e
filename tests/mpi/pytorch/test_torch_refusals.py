"""A gradient that one rank alone cannot take is refused on all, in whatever way a step goes, and training goes on."""

from functools import partial

import needs_torch  # noqa: F401
import numpy as np
import pytest
import torch
from torch import nn

from mpicomp.errors import BufferRefused, Disagreement, InvalidArgument
from mpicomp.torch import DistributedOptimizer, broadcast_optimizer_state, broadcast_parameters

torch.set_num_threads(1)
SPARSE = r"the gradient of embedding\.weight is sparse, expected a dense one: make the layer with sparse=False"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.last = nn.Embedding(8, 4), nn.Linear(4, 4)

    def forward(self, words):
        return self.last(self.embedding(words)).pow(2).sum()


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20], ids=["many buckets", "one bucket"])
@pytest.mark.parametrize("scheme", ["dense", "topk:density=0.5", "localsgd:period=3"])  # whose first steps are silent
def test_a_sparse_gradient_on_one_rank(comm, seed, scheme, bucket_bytes, overlap, nonfinite):
    last, words = comm.size - 1, torch.tensor([1, 2, 5])
    torch.manual_seed(seed)
    model = Net()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), comm, scheme,
                                     overlap=overlap, bucket_bytes=bucket_bytes, nonfinite=nonfinite)
    for accumulates in (False, True):
        model.embedding.sparse = comm.rank == last
        optimizer.zero_grad()
        with pytest.raises(BufferRefused, match=f"^rank {last}: {SPARSE}$"):
            if accumulates:
                with optimizer.no_sync():
                    model(words).backward()
                optimizer.synchronize()
            else:
                model(words).backward()
        model.embedding.sparse = False
        optimizer.zero_grad()
        model(words + comm.rank % 2).backward()
        optimizer.step()
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    if scheme != "localsgd:period=3":
        assert len(set(comm.allgather(model.embedding.weight.detach().numpy().tobytes()))) == 1
    optimizer.close()


def test_parameters_are_not_broadcast_over_a_communicator_of_mpi4py(world):
    with pytest.raises(InvalidArgument, match=r"got Intracomm: make one by mpicomp\.Comm\(MPI\.COMM_WORLD\)"):
        broadcast_parameters(Net().state_dict(), world)


@pytest.mark.parametrize("what", ["parameters", "optimizer"])
def test_a_root_that_is_none_or_differs(comm, what):
    net = Net()
    spread = partial(broadcast_parameters, net.state_dict()) if what == "parameters" else partial(
        broadcast_optimizer_state, torch.optim.SGD(net.parameters(), 0.1, momentum=0.9))
    for root in (comm.size, -1, "0"):
        with pytest.raises(InvalidArgument, match=f"root must be a rank, 0 to {comm.size - 1}, got {root!r}"):
            spread(comm, root)
    spread(comm, np.int64(0) if comm.rank else 0)
    if comm.size > 1:
        with pytest.raises(Disagreement, match=r"disagree on a collective\. .*: values of rank"):
            spread(comm, min(comm.rank, 1))


@pytest.mark.parametrize("kind", ["meta", "sparse"])
def test_a_tensor_that_mpi_cannot_read_on_one_rank(comm, kind):
    mine = torch.ones(3, 2)
    if comm.rank == comm.size - 1:
        mine = mine.to_sparse() if kind == "sparse" else mine.to("meta")
    with pytest.raises(BufferRefused, match=f"rank {comm.size - 1}: .*{kind}"):
        broadcast_parameters({"first": torch.ones(2), "odd": mine}, comm)
