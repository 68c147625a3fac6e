"""Gradients that no optimizer step uses: of another model's loss, of frozen and of unused parameters.

What they would have sent stays in the error memory, and parameters without a gradient do not move.
"""

import time
from contextlib import nullcontext
from typing import ClassVar

import needs_torch  # noqa: F401
import numpy as np
import pytest
import torch
from torch import nn

from mpicomp.errors import InvalidArgument
from mpicomp.torch import SAM, DistributedOptimizer
from mpicomp.torch.exchange import Exchange

torch.set_num_threads(1)
SMALL = {"bucket_bytes": 300}
# Selected, signs of all elements with a second memory, low rank, with momentum (some of it dense), local.
SCHEMES = ["topk:density=0.2", "scalecom:chunk=7", "onebit", "powersgd:rank=1", "signsgd", "dgc:density=0.2,dense=1d",
           "gtopk:density=0.2", "error-reset:period=2"]
WAYS = [("frozen", {}), ("frozen, gradients zeroed", {"overlap": False}), ("unused", {"nonfinite": "skip"}),
        ("unused", {})]


class Net(nn.Module):
    """Two layers, of which the second may be left out, and a norm between them."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.middle = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6)
        self.last = nn.Linear(6, 4)

    def forward(self, x, middle=True):
        x = torch.tanh(self.norm(self.first(x)))
        return self.last(torch.tanh(self.middle(x)) if middle else x).pow(2).mean()


def made(comm, seed, scheme, lr=0.05, **options):
    torch.manual_seed(seed)
    model = Net()
    inner = torch.optim.SGD(model.parameters(), lr=lr)
    return model, DistributedOptimizer(inner, model.named_parameters(), comm, scheme, **{**SMALL, **options})


def train(comm, seed, model, optimizer, steps, first=0, **how):
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(1000 * seed % 9973 + 10 * step + comm.rank)
        optimizer.zero_grad()
        model(torch.randn(5, 6, generator=generator), **how).backward()
        optimizer.step()


def states(optimizer):
    return [{key: value for key, value in reducer.state_dict().items() if key != "step"}
            for reducer in optimizer.reducers.values()]


def memory_of(optimizer, names):
    """Kept state of some parameters: residuals, velocities and this rank's pieces of second memories."""
    kept = {}
    for reducer in optimizer.reducers.values():
        bucket, state = reducer._laid_out.bucket, reducer.state_dict()
        for name, (start, stop) in zip(bucket.names, bucket.spans, strict=True):
            if name in names:
                for key, value in state.items():
                    if key.startswith("memory/") and start < bucket.n:
                        kept[name, key] = value[start:stop].copy()
                    elif key.startswith("dense/") and start >= bucket.n:
                        kept[name, key] = value[start - bucket.n : stop - bucket.n].copy()
                    elif key == "exchange/residual":
                        piece = np.arange(value.size) + int(state["exchange/start"])
                        kept[name, key] = value[(piece >= start) & (piece < stop)].copy()
    return kept


# -- another model's loss

@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("call", ["zero_grad", "state_dict", "backward", "step"])
def test_gradients_that_were_sent_are_not_dropped(comm, seed, call, overlap):
    model, optimizer = made(comm, seed, "topk:density=0.2", overlap=overlap)
    train(comm, seed, model, optimizer, 2)

    def backward():
        model(torch.ones(2, 6)).backward()
        return torch.tensor(0.0)

    backward()
    calls = {"zero_grad": optimizer.zero_grad, "state_dict": optimizer.state_dict, "backward": backward,
             "step": lambda: optimizer.step(backward)}  # fmt: skip
    with pytest.raises(InvalidArgument, match=r"goes into `with optimizer\.no_sync\(\):` of this optimizer"):
        calls[call]()
    optimizer.step()  # is still possible
    optimizer.zero_grad()
    optimizer.close()


@pytest.mark.parametrize("scheme", ["topk:density=0.2", "onebit:memory=none", "dgc:density=0.2"])
def test_a_generators_loss_leaves_the_discriminators_memory(comm, seed, scheme):
    """With no_sync, the discriminator trains as if the generator's backward had not gone through it."""
    runs = []
    for through in (True, False):
        torch.manual_seed(seed)
        generator, model = nn.Linear(6, 6), Net()
        inner = torch.optim.SGD(generator.parameters(), 0.0), torch.optim.SGD(model.parameters(), 0.05)
        ours, other = (DistributedOptimizer(one, of.named_parameters(), comm, scheme, **SMALL)
                       for one, of in zip(inner, (generator, model), strict=True))
        for step in range(4):
            x = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * step + comm.rank))
            other.zero_grad()
            model(generator(x).detach()).backward()
            other.step()
            if through:
                before = states(other)
                ours.zero_grad()
                with other.no_sync():
                    (-model(generator(x))).backward()
                ours.step()
                np.testing.assert_equal(states(other), before)
        runs.append([parameter.detach().numpy().tobytes() for parameter in model.parameters()])
        ours.close()
        other.close()
    assert runs[0] == runs[1]


@pytest.mark.parametrize("scheme", ["dense", "qsgd", "topk:density=0.2,memory=none"])
def test_without_a_memory_nothing_is_lost(comm, seed, scheme):
    model, optimizer = made(comm, seed, scheme)
    model(torch.ones(2, 6)).backward()
    optimizer.zero_grad()
    train(comm, seed, model, optimizer, 1)
    optimizer.close()


def test_gradients_that_were_left_out_may_be_cleared(comm, seed):
    model, optimizer = made(comm, seed, "topk:density=0.2", nonfinite="skip")
    model(torch.full((2, 6), torch.nan)).backward()
    assert optimizer.skipped
    optimizer.zero_grad()
    train(comm, seed, model, optimizer, 1)
    optimizer.close()


def test_sam_with_a_memory_looks_for_the_worst_point_without_an_exchange(comm, seed):
    torch.manual_seed(seed)
    model = Net()
    inner = SAM(torch.optim.SGD(model.parameters(), 0.05), rho=0.1)
    optimizer = DistributedOptimizer(inner, model.named_parameters(), comm, "topk:density=0.2", **SMALL)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 6))
        loss.backward()
        return loss

    with optimizer.no_sync():
        closure()
    optimizer.step(closure)
    optimizer.close()


# -- parameters without a gradient

@pytest.mark.parametrize(("how", "options"), WAYS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_layer_without_gradients_stays_and_keeps_its_memory(comm, seed, scheme, how, options):
    model, optimizer = made(comm, seed, scheme, **options)
    train(comm, seed, model, optimizer, 5)
    layer, names = model.middle, {"middle.weight", "middle.bias"}
    before = [parameter.detach().clone() for parameter in layer.parameters()]
    kept, rest = memory_of(optimizer, names), [parameter.detach().clone() for parameter in model.first.parameters()]
    assert any(value.any() for value in kept.values())
    optimizer.zero_grad(set_to_none=how != "frozen, gradients zeroed")
    if how != "unused":
        layer.requires_grad_(False)
    train(comm, seed, model, optimizer, 6, first=5, middle=how != "unused")
    assert all(parameter.grad is None for parameter in layer.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, layer.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(rest, model.first.parameters(), strict=True))
    np.testing.assert_equal(memory_of(optimizer, names), kept)
    layer.requires_grad_(True)
    train(comm, seed, model, optimizer, 2, first=11)
    assert not all(torch.equal(a, b) for a, b in zip(before, layer.parameters(), strict=True))
    optimizer.close()


@pytest.mark.parametrize("scheme", ["signsgd", "signsgd:memory=none", "onebit"])
def test_a_layer_that_no_rank_ever_used_has_no_gradient(comm, seed, scheme):
    """A code of signs has no zero."""
    model, optimizer = made(comm, seed, scheme)
    train(comm, seed, model, optimizer, 2, middle=False)
    assert all(parameter.grad is None for parameter in model.middle.parameters())
    assert not any(value.any() for value in memory_of(optimizer, {"middle.weight", "middle.bias"}).values())
    optimizer.close()


def test_a_layer_that_one_rank_uses_goes_on_with_its_memory(comm, seed):
    """Ranks without a gradient send what their memory holds, so that it empties."""
    model, optimizer = made(comm, seed, "topk:density=0.5", lr=0.0)
    train(comm, seed, model, optimizer, 3)
    names = {"middle.weight", "middle.bias"}
    before = memory_of(optimizer, names)
    train(comm, seed, model, optimizer, 4, first=3, middle=comm.rank == 0)
    after = memory_of(optimizer, names)
    if comm.rank:
        assert sum(np.abs(value).sum() for value in after.values()) < sum(np.abs(v).sum() for v in before.values())
    optimizer.close()


def test_a_rank_without_data_sends_its_memory(comm, seed):
    model, optimizer = made(comm, seed, "topk:density=0.5", lr=0.0)
    train(comm, seed, model, optimizer, 3)
    norms = [reducer.memory_norm() for reducer in optimizer.reducers.values()]
    for _ in range(4):
        optimizer.zero_grad()
        if comm.rank == 0:
            model(torch.ones(2, 6)).backward()
        else:
            optimizer.synchronize()
        optimizer.step()
    if comm.rank:
        assert all(reducer.memory_norm() < norm
                   for reducer, norm in zip(optimizer.reducers.values(), norms, strict=True))
    optimizer.close()


class Fails(torch.autograd.Function):
    """Hands a value on, and backward fails as long as there are errors."""

    errors: ClassVar = []

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if Fails.errors:
            raise Fails.errors.pop()
        return gradient


class Failing:
    """A model of two layers, each a bucket; backward may fail between the exchange of the last and of the first.

    Rank 0's exchange takes the gradient; if the others' were not waited for, they would take that of the next backward.
    """

    def __init__(self, comm, monkeypatch, scheme="dense", wrapped=lambda optimizer: optimizer):
        self.comm, (self.first, self.last) = comm, (nn.Linear(4, n, bias=False) for n in (4, 100))
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(4))
        named = [("first", self.first.weight), ("last", self.last.weight)]
        inner = wrapped(torch.optim.SGD([one for _, one in named], 0.0))
        self.optimizer = DistributedOptimizer(inner, named, comm, scheme, bucket_bytes=1)
        average = Exchange._average

        def late(exchange, bucket, events):
            time.sleep(0.1 * (comm.rank > 0))
            average(exchange, bucket, events)

        monkeypatch.setattr(Exchange, "_average", late)

    def backward(self, value, fails=False):
        Fails.errors[:] = [RuntimeError("no memory")] * fails
        loss = self.last(Fails.apply(self.first(torch.full((1, 4), value)))).sum()
        try:
            loss.backward()
        finally:
            time.sleep(0.3 * (self.comm.rank == 0))
        return loss


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("by_closure", [True, False])
def test_a_backward_that_fails_leaves_nothing_for_the_next(comm, monkeypatch, set_to_none, by_closure):
    model = Failing(comm, monkeypatch)
    optimizer = model.optimizer

    def run(fails):
        optimizer.zero_grad(set_to_none)
        return model.backward(1.0 if fails else 100.0 + comm.rank, fails)

    for _ in range(2):
        for fails in (True, False):
            with pytest.raises(RuntimeError, match="no memory") if fails else nullcontext():
                optimizer.step(lambda fails=fails: run(fails)) if by_closure else run(fails)
        assert (model.last.weight.grad == 100 + (comm.size - 1) / 2).all()
        if not by_closure:
            optimizer.step()
    optimizer.close()


@pytest.mark.parametrize("on_rank_0_alone", [True, False])
def test_reducers_may_be_looked_at_during_backward(comm, monkeypatch, on_rank_0_alone):
    """A hook that logs does: no bucket is exchanged once more for it."""
    model = Failing(comm, monkeypatch, "topk:density=0.1")
    optimizer, seen = model.optimizer, []
    if comm.rank == 0 or not on_rank_0_alone:
        model.first.weight.register_post_accumulate_grad_hook(lambda _: seen.append(optimizer.reducers))
    for step in range(3):
        optimizer.zero_grad()
        model.backward(step + 1.0)
        optimizer.step()
        assert [reducer.step for reducer in optimizer.reducers.values()] == [step + 1, step + 1]
    assert len(seen) in (0, 3)
    optimizer.close()


def test_a_state_follows_a_backward_that_fails(comm, monkeypatch):
    """Saved, it is the same on all ranks; loaded, it takes no communicator from what is under way."""
    model = Failing(comm, monkeypatch, "topk:density=0.1")
    saved = model.optimizer.state_dict()
    for load in (lambda: saved, model.optimizer.state_dict):
        with pytest.raises(RuntimeError, match="no memory"):
            model.backward(1.0, fails=True)
        model.optimizer.load_state_dict(load())
        steps = [reducer.step for reducer in model.optimizer.reducers.values()]
        assert comm.allgather(steps) == [steps] * comm.size
    model.optimizer.close()


def test_sam_goes_on_after_a_backward_that_failed(comm, monkeypatch):
    model = Failing(comm, monkeypatch)
    sam = SAM(model.optimizer, rho=0.1)
    for fails in (True, False):
        def closure(fails=fails):
            sam.zero_grad()
            return model.backward(100.0 + comm.rank, fails)

        with model.optimizer.no_sync():
            model.backward(1.0)
        with pytest.raises(RuntimeError, match="no memory") if fails else nullcontext():
            sam.step(closure)
    model.optimizer.close()
