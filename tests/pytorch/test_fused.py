"""Fused optimizers, which read memory as it lies and scales on themselves, step as they do without us, bit for bit."""

import copy

import needs_torch  # noqa: F401
import pytest
import torch
from torch import nn

from mpicomp.errors import InvalidArgument
from mpicomp.torch import DistributedOptimizer

FUSED = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
}
OTHERS = {
    "foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "one by one": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
}
WAYS = {"alone": {}, "buckets": {"algorithm": "ring", "bucket_bytes": 200}}  # an option means: no shortcut
SCALE = 2.0**10


def pair(comm, model, optimizer, way, **options):
    """A plain model with its optimizer, and its twin under ours."""
    made, ours = (FUSED | OTHERS)[optimizer], copy.deepcopy(model)
    wrapped = DistributedOptimizer(made(ours.parameters()), ours.named_parameters(), comm, **WAYS[way], **options)
    return (model, made(model.parameters())), (ours, wrapped)


def assert_same(plain, ours):
    for (name, a), b in zip(plain.named_parameters(), ours.parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("dtype", "unscales"), [
    (torch.float32, False), (torch.float32, True), (torch.float16, False),  # a scaler does not unscale float16 itself
])
@pytest.mark.parametrize("optimizer", FUSED)
def test_loss_scaling(comm, optimizer, dtype, unscales, way):
    """The optimizer divides by the scale itself; an overflow leaves a step out and halves the scale.

    (PyTorch's own momentum would begin with uninitialised memory, were the first step the one left out.)
    """
    bad = 2 if optimizer == "momentum" else 0
    scalers = [torch.amp.GradScaler("cpu", init_scale=SCALE) for _ in range(2)]
    plain, ours = pair(comm, nn.Linear(6, 4).to(dtype), optimizer, way, grad_scaler=scalers[1])
    for step in range(5):
        x = torch.randint(1, 5, (3, 6)).to(dtype) / 8  # Adagrad divides by the gradient
        x[0, 0] = torch.inf if step == bad else x[0, 0]
        for (model, one), scaler in zip((plain, ours), scalers, strict=True):
            one.zero_grad()
            scaler.scale(model(x).sum()).backward()
            if unscales:
                scaler.unscale_(one)
            scaler.step(one)
            scaler.update()
        assert ours[1].skipped == (step == bad)
        assert scalers[0].get_scale() == scalers[1].get_scale() == (SCALE if step < bad else SCALE / 2)
        assert_same(plain[0], ours[0])
    assert not hasattr(ours[1].optimizer, "grad_scale")


def test_a_scale_of_the_users_own(comm):
    """``grad_scale`` set on our object is set on the optimizer that reads it."""
    plain, ours = pair(comm, nn.Linear(6, 4), "sgd", "buckets")
    x = torch.randn(3, 6)
    for model, one in (plain, ours):
        one.grad_scale = torch.tensor(4.0)
        model(x).sum().backward()
        one.step()
    assert_same(plain[0], ours[0])
    del ours[1].grad_scale
    assert not hasattr(ours[1], "grad_scale") and not hasattr(ours[1].optimizer, "grad_scale")


class TakesScaler(torch.optim.SGD):
    """Unscales by the scaler that ``step`` is given, which PyTorch calls deprecated."""

    _step_supports_amp_scaling = True

    def step(self, closure=None, *, grad_scaler=None):
        if grad_scaler is not None:
            grad_scaler.unscale_(self)
        return super().step(closure)


@pytest.mark.filterwarnings("ignore:GradScaler is going to stop passing itself:FutureWarning")
def test_an_optimizer_that_takes_the_scaler(comm):
    plain, scaler = nn.Linear(6, 4), torch.amp.GradScaler("cpu", init_scale=SCALE)
    ours = copy.deepcopy(plain)
    wrapped = DistributedOptimizer(TakesScaler(ours.parameters(), 0.1), ours.named_parameters(), comm,
                                   grad_scaler=scaler, **WAYS["buckets"])
    x = torch.randn(3, 6)
    for model, one in ((plain, TakesScaler(plain.parameters(), 0.1)), (ours, wrapped)):
        scaler.scale(model(x).sum()).backward()
        scaler.step(one)
        scaler.update()
    assert_same(plain, ours)


@pytest.mark.parametrize("way", WAYS)
def test_a_step_left_out_is_left_out_once(comm, way):
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    _, (model, wrapped) = pair(comm, nn.Linear(3, 2), "sgd", way, grad_scaler=scaler)
    scaler.scale(model(torch.full((1, 3), torch.inf)).sum()).backward()
    scaler.step(wrapped)
    with pytest.raises(InvalidArgument, match=r"step\(\) needs gradients"):
        wrapped.step()


LAYOUTS = {
    "channels_last": (lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), (2, 3, 5, 5)),
    "channels_last_3d": (lambda: nn.Conv3d(3, 2, 2).to(memory_format=torch.channels_last_3d), (2, 3, 3, 3, 3)),
    "1x1": (lambda: nn.Conv2d(3, 4, 1).to(memory_format=torch.channels_last), (2, 3, 5, 5)),
    "transposed": (lambda: with_weight(torch.randn(6, 4).t()), (3, 6)),
    "transposed square": (lambda: with_weight(torch.randn(6, 6).t()), (3, 6)),
}


def with_weight(weight):
    layer = nn.Linear(*weight.shape[::-1])
    layer.weight = nn.Parameter(weight)
    return layer


def rows(model, one, x, steps, set_to_none=True):
    for step in range(steps):
        one.zero_grad(set_to_none=set_to_none)
        model(x[step]).pow(2).mean().backward()
        one.step()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("optimizer", [*FUSED, *OTHERS])
def test_layouts_of_weights(comm, optimizer, layout, set_to_none, way):
    make, shape = LAYOUTS[layout]
    plain, ours = pair(comm, make(), optimizer, way)
    x = torch.randn(4, *shape)
    for model, one in (plain, ours):
        rows(model, one, x, 4, set_to_none)
    assert_same(plain[0], ours[0])
    for a, b in zip(plain[0].parameters(), ours[0].parameters(), strict=True):
        assert a.grad.stride() == b.grad.stride() or b.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_layouts_in_other_precisions(comm, dtype):
    plain, ours = pair(comm, nn.Conv2d(3, 4, 3).to(dtype, memory_format=torch.channels_last), "adam", "buckets")
    x = torch.randn(4, 2, 3, 5, 5).to(dtype)
    for model, one in (plain, ours):
        rows(model, one, x, 4)
    assert_same(plain[0], ours[0])


def test_a_model_converted_between_steps(comm):
    plain, ours = pair(comm, nn.Conv2d(3, 4, 3), "sgd", "buckets")
    x = torch.randn(6, 2, 3, 5, 5)
    for model, one in (plain, ours):
        for part, layout in zip(x.split(2), (torch.channels_last, torch.contiguous_format, torch.channels_last),
                                strict=True):
            rows(model, one, part, 2)
            model.to(memory_format=layout)
    assert_same(plain[0], ours[0])


def test_weights_with_gaps(comm):
    """Their gradients are in C order, as PyTorch's own."""
    weight = torch.randn(4, 12)[:, ::2]
    plain, ours = pair(comm, with_weight(weight), "foreach", "buckets")
    ours[0].weight.data = weight.clone().repeat_interleave(2, 1)[:, ::2]  # a copy of the model has no gaps
    x = torch.randn(3, 5, 6)
    for model, one in (plain, ours):
        assert not model.weight.is_contiguous()
        rows(model, one, x, 3)
    assert_same(plain[0], ours[0])


@pytest.mark.parametrize("scheme", ["topk:density=0.2", "powersgd:rank=2", "randomk:density=0.3"])
def test_what_a_scheme_does_does_not_depend_on_the_layout(comm, scheme):
    """Matrices and random coordinates are those of the weight's shape, in whatever order it lies in memory."""
    plain = nn.Conv2d(3, 4, 3)
    turned = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    x = torch.randint(-2, 3, (4, 2, 3, 5, 5)).float()
    for model in (plain, turned):
        with torch.no_grad():
            model.weight.copy_(torch.arange(108.0).view(4, 3, 3, 3) % 5 - 2)
        inner = FUSED["sgd"](model.parameters())
        one = DistributedOptimizer(inner, model.named_parameters(), comm, scheme)
        for batch in x:
            one.zero_grad()
            model(batch).sum().backward()
            one.step()
    assert_same(plain, turned)


def test_a_gradient_that_the_user_turned(comm):
    """It lies where the mean lay, in another order."""
    model = nn.Linear(4, 4, bias=False)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), model.named_parameters(), comm,
                                     **WAYS["buckets"])
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    turned = model.weight.grad.t()
    expected, model.weight.grad = turned.clone(), turned
    optimizer.synchronize()
    assert torch.equal(model.weight.grad, expected)
