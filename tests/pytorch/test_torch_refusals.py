"""Refusals of ``DistributedOptimizer``, with the advice in their messages."""

import subprocess
import sys

import needs_torch  # noqa: F401
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mpicomp.errors import BufferRefused, InvalidArgument, NonFiniteGradient
from mpicomp.torch import LAMB, LARS, SAM, DistributedOptimizer

WAYS = {"alone": {}, "buckets": {"algorithm": "ring", "bucket_bytes": 20}}


@pytest.fixture(params=WAYS)
def made(request, comm):
    """A model and its optimizer under ours."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, DistributedOptimizer(optimizer, model.named_parameters(), comm, **WAYS[request.param])


def backward(model, x=None):
    model(torch.randn(5, 3) if x is None else x).sum().backward()


def test_step_before_backward(made):
    model, optimizer = made
    with pytest.raises(InvalidArgument, match=r"call backward\(\) outside no_sync\(\) before every step"):
        optimizer.step()
    with optimizer.no_sync():
        backward(model)
    with pytest.raises(InvalidArgument, match="before every step"):
        optimizer.step()
    backward(model)
    optimizer.step()
    with pytest.raises(InvalidArgument, match="before every step"):
        optimizer.step()


def test_backward_twice(made):
    model, optimizer = made
    backward(model)
    with pytest.raises(InvalidArgument, match=r"backward\(\) ran again before step\(\).*no_sync"):
        backward(model)
    optimizer.zero_grad()
    backward(model)
    with pytest.raises(InvalidArgument, match="all but the last"), optimizer.no_sync():
        backward(model)
    optimizer.step()


def test_a_gradient_that_comes_twice(comm):
    """Reentrant checkpoints run backward within backward, and do not say when all is done."""
    layer = nn.Linear(3, 3)
    optimizer = DistributedOptimizer(torch.optim.SGD(layer.parameters(), 0.1), layer.named_parameters(), comm)
    x = torch.randn(2, 3, requires_grad=True)
    with pytest.raises(InvalidArgument, match=r"use_reentrant=False|ran again"):
        checkpoint(layer, checkpoint(layer, x, use_reentrant=True), use_reentrant=True).sum().backward()
    optimizer.close()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_is_named_and_training_may_go_on(made, bad):
    model, optimizer = made
    before = [parameter.clone() for parameter in model.parameters()]
    x = torch.randn(5, 3)
    x[2, 1] = bad
    with pytest.raises(NonFiniteGradient, match=r"0\.weight|2\.weight"):
        backward(model, x)
    optimizer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    backward(model)
    optimizer.step()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scheme", ["dense", "topk:density=0.5"])
def test_skip_leaves_everything_as_it_was(comm, way, scheme):
    model = nn.Linear(3, 4)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    optimizer = DistributedOptimizer(inner, model.named_parameters(), comm, scheme, nonfinite="skip", **WAYS[way])
    backward(model)
    optimizer.step()
    before = [parameter.clone() for parameter in model.parameters()]
    states = [reducer.memory_norm() for reducer in optimizer._exchange.reducers]
    optimizer.zero_grad()
    backward(model, torch.full((5, 3), torch.nan))
    optimizer.step()
    assert optimizer.skipped
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert states == [reducer.memory_norm() for reducer in optimizer._exchange.reducers]


@pytest.mark.parametrize("scheme", ["onebit:memory=none", "powersgd:memory=none", "accordion:memory=none",
                                    "dgc:density=0.5,dense=1d"])
def test_skip_leaves_what_no_memory_keeps(comm, scheme):
    """Buckets before the bad one keep the state of exchanges, schedules and dense arrays, too."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), comm, scheme,
                                     nonfinite="skip", bucket_bytes=100)  # fmt: skip
    reducers = optimizer._exchange.reducers
    assert len(reducers) > 1
    backward(model, torch.randn(5, 6))
    optimizer.step()
    before = [reducer.state_dict() for reducer in reducers]
    optimizer.zero_grad()
    model[0].weight.register_hook(lambda gradient: gradient * torch.nan)  # the last to come
    backward(model, torch.randn(5, 6))
    optimizer.step()
    assert optimizer.skipped
    np.testing.assert_equal([reducer.state_dict() for reducer in reducers], before)


def test_changed_models(made):
    model, optimizer = made
    with pytest.raises(InvalidArgument, match="add them to the optimizer before"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    backward(model)
    optimizer.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(7))]})
    with pytest.raises(InvalidArgument, match=r"shape \[7\] was added or unfrozen"):
        optimizer.step()


def test_changed_shape(comm):
    model = nn.Linear(3, 4)
    DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), comm, "topk:k=1")
    model.weight.data, model.bias.data = torch.ones(1, 3), torch.ones(1)
    with pytest.raises((BufferRefused, RuntimeError), match=r"\[1\]|\[1, 3\]|size of tensor"):
        backward(model)


def test_sparse_gradients(comm):
    model = nn.Embedding(10, 3, sparse=True)
    DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), comm, "topk:k=1")
    with pytest.raises(BufferRefused, match=r"weight is sparse.*sparse=False"):
        model(torch.tensor([1, 2])).sum().backward()


def refused(comm, match, optimizer, named, scheme="dense", **options):
    with pytest.raises(InvalidArgument, match=match):
        DistributedOptimizer(optimizer, named, comm, scheme, **options)


def test_parameters_that_do_not_fit(comm):
    model, other = nn.Linear(3, 4), nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    named = list(model.named_parameters())
    refused(comm, "lacks extra", sgd, [*named, ("extra", other.weight)])
    refused(comm, "1 are missing: pass model.named_parameters", sgd, named[:1])
    refused(comm, "must have a parameter that requires gradients", sgd, [])
    complex_ = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    refused(comm, "must be one of float16, bfloat16", torch.optim.SGD([complex_], 0.1), [("c", complex_)])


def test_options_out_of_range(comm):
    model = nn.Linear(3, 4)
    sgd, named = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), list(model.named_parameters())
    refused(comm, "scheme dgc holds the momentum: the optimizer's must be 0, got 0.9", sgd, named, "dgc")
    refused(comm, "unknown scheme", sgd, named, "dens")
    refused(comm, "bucket_bytes must be positive", sgd, named, bucket_bytes=0)
    refused(comm, "nonfinite must be one of", sgd, named, nonfinite="ignore")
    refused(comm, "densities must name parameters of the model, got w", sgd, named, "topk", densities={"w": 0.1})


OWN_MOMENTUM = {
    "AdamW": lambda p: torch.optim.AdamW(p), "NAdam": lambda p: torch.optim.NAdam(p),
    "Adamax": lambda p: torch.optim.Adamax(p), "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9),
    "LARS": lambda p: LARS(p, 0.1), "LAMB": lambda p: LAMB(p), "SAM": lambda p: SAM(torch.optim.Adam(p)),
    "tensors": lambda p: torch.optim.Adam(p, betas=(torch.tensor(0.9), torch.tensor(0.999)), capturable=True),
}  # fmt: skip
NO_MOMENTUM = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1), "Adagrad": lambda p: torch.optim.Adagrad(p),
    "AdamW": lambda p: torch.optim.AdamW(p, betas=(0.0, 0.999)), "RMSprop": lambda p: torch.optim.RMSprop(p),
    "Adadelta": lambda p: torch.optim.Adadelta(p), "Adafactor": lambda p: torch.optim.Adafactor(p),
}  # fmt: skip


@pytest.mark.parametrize("scheme", ["dgc", "topk:memory=momentum-corrected", "topk:memory=update"])
@pytest.mark.parametrize("kind", OWN_MOMENTUM)
def test_momentum_is_not_applied_twice(comm, kind, scheme):
    model = nn.Linear(3, 4)
    refused(comm, r"holds the momentum: the optimizer's must be 0, got 0\.9.*first of betas",
            OWN_MOMENTUM[kind](model.parameters()), model.named_parameters(), scheme)


@pytest.mark.parametrize("kind", NO_MOMENTUM)
def test_optimizers_without_momentum_go_with_any_memory(comm, kind):
    model = nn.Linear(3, 4)
    optimizer = DistributedOptimizer(NO_MOMENTUM[kind](model.parameters()), model.named_parameters(), comm, "dgc")
    backward(model)
    optimizer.step()
    optimizer.close()


def test_a_schedule_that_sets_the_momentum(comm):
    """OneCycleLR gives plain SGD a momentum, unless it is asked not to."""
    model = nn.Linear(3, 4)
    inner = torch.optim.SGD(model.parameters(), 0.1)
    optimizer = DistributedOptimizer(inner, model.named_parameters(), comm, "dgc")
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    backward(model)
    with pytest.raises(InvalidArgument, match=r"the optimizer's must be 0, got 0\.95"):
        optimizer.step()
    optimizer.close()


def test_states_that_do_not_fit(comm):
    model = nn.Linear(3, 4)

    def made(**options):
        return DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), comm, **options)

    state = made(scheme="topk:k=1").state_dict()
    with pytest.raises(InvalidArgument, match=r"'reducers'; a plain optimizer's goes into.*\.optimizer"):
        made().load_state_dict(torch.optim.SGD(model.parameters(), 0.1).state_dict())
    with pytest.raises(InvalidArgument, match="state must be of buckets"):
        made(scheme="topk:k=1", bucket_bytes=1).load_state_dict(state)
    with pytest.raises(InvalidArgument, match="must have scheme=topk:k=2, got topk:k=1"):
        made(scheme="topk:k=2").load_state_dict(state)


def test_without_pytorch():
    """The rest of the library works, and the text gives the command that installs it."""
    code = "import sys; sys.modules['torch'] = None; import mpicomp; mpicomp.Scheme.parse('topk'); import mpicomp.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert "MissingExtra: mpicomp.torch needs PyTorch: pip install 'mpicomp[torch]'" in done.stderr
