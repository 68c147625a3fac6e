"""Fused optimizers on several ranks: the bits of one process that has the mean gradient."""

import needs_torch  # noqa: F401
import pytest
import torch
from torch import nn

from mpicomp.torch import DistributedOptimizer

torch.set_num_threads(1)
FUSED = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.125, fused=True),
}
SCALE = 2.0**10


class Weighted(nn.Module):
    """Its gradients are the factors that it is given: small integers, so that every order of sums has the same bits."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.ones(4, 3, 2, 2).to(memory_format=torch.channels_last))
        # Parameters that have another layout fill whole vector registers: PyTorch's fused Adam rounds what is left over
        # otherwise, and other elements are left over in another layout.
        self.turned = nn.Parameter(torch.ones(4, 8).t())
        self.solid = nn.Parameter(torch.ones(2, 3, 2, 2, 2).to(memory_format=torch.channels_last_3d))
        self.last = nn.Parameter(torch.ones(7))

    def forward(self, factors):
        return sum((one * factor).sum() for one, factor in zip(self.parameters(), factors, strict=True))


def drawn(model, size, seed, steps=4):
    """[step][rank][parameter] -> factors, whose sums over the ranks are multiples of their number."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [parameter.shape for parameter in model.parameters()]
    return [[[size * torch.randint(-4, 5, shape, generator=generator).float() for shape in shapes]
             for _ in range(size)] for _ in range(steps)]


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20], ids=["many buckets", "one bucket"])
@pytest.mark.parametrize("optimizer", FUSED)
def test_one_process_with_the_mean(comm, seed, optimizer, bucket_bytes):
    """Scaled losses, an overflow on the last rank in the first step, and weights in other than C order."""
    make, size = FUSED[optimizer], comm.size
    model, alone = Weighted(), Weighted()
    scalers = [torch.amp.GradScaler("cpu", init_scale=SCALE) for _ in range(2)]
    wrapped = DistributedOptimizer(make(model.parameters()), model.named_parameters(), comm, grad_scaler=scalers[0],
                                   bucket_bytes=bucket_bytes)
    plain = make(alone.parameters())
    for step, everyone in enumerate(drawn(model, size, seed)):
        mean = [sum(factors) / size for factors in zip(*everyone, strict=True)]
        own = everyone[comm.rank]
        if step == 0:
            mean[1][2, 1] = torch.inf
        if step == 0 and comm.rank == size - 1:
            own[1][2, 1] = torch.inf
        for one, its, factors, scaler in ((model, wrapped, own, scalers[0]), (alone, plain, mean, scalers[1])):
            its.zero_grad()
            scaler.scale(one(factors)).backward()
            scaler.step(its)
            scaler.update()
        assert wrapped.skipped == (step == 0) and scalers[0].get_scale() == SCALE / 2
        for (name, a), b in zip(model.named_parameters(), alone.parameters(), strict=True):
            assert torch.equal(a, b), name
    wrapped.close()


def test_a_model_converted_between_steps(comm, seed):
    """``model.to`` gives the gradients, which are still there, other memory."""
    model, alone = Weighted(), Weighted()
    make, size = FUSED["sgd"], comm.size
    wrapped = DistributedOptimizer(make(model.parameters()), model.named_parameters(), comm)
    plain = make(alone.parameters())
    for everyone in drawn(model, size, seed):
        mean = [sum(factors) / size for factors in zip(*everyone, strict=True)]
        for one, its, factors in ((model, wrapped, everyone[comm.rank]), (alone, plain, mean)):
            its.zero_grad()
            one(factors).backward()
            its.step()
            one.double().float()
        for (name, a), b in zip(model.named_parameters(), alone.parameters(), strict=True):
            assert torch.equal(a, b), name
    wrapped.close()


def test_ranks_with_other_memory_layouts(comm, seed):
    """The state of rank 0's optimizer comes in the layout of each rank's own weights."""
    model, size = Weighted(), comm.size
    inner = FUSED["adam"](model.parameters())
    steps = drawn(model, size, seed)
    if comm.rank == 0:
        model(steps[0][0]).backward()
        inner.step()
        inner.zero_grad()
    else:
        for parameter in model.parameters():
            parameter.data = parameter.detach().contiguous()
    wrapped = DistributedOptimizer(inner, model.named_parameters(), comm)
    for everyone in steps[1:]:
        wrapped.zero_grad()
        model(everyone[comm.rank]).backward()
        wrapped.step()
    values = [parameter.detach().contiguous().numpy().tobytes() for parameter in model.parameters()]
    assert len(set(map(tuple, comm.allgather(values)))) == 1
    wrapped.close()
