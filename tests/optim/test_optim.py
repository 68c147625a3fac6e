"""Optimizers against formulas written out in float64 and, if PyTorch is installed, against PyTorch's."""

import math

import numpy as np
import pytest

from mpicomp import optim
from mpicomp.errors import InvalidArgument
from mpicomp.optim import rates

SHAPES = {"weight": (5, 3), "bias": (3,), "scale": ()}
STEPS = 7


def drawn(seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(dtype) * np.ones(shape, dtype) if shape else
            np.array(rng.standard_normal(), dtype) for name, shape in SHAPES.items()}  # fmt: skip


@pytest.fixture
def seed():
    return int(np.random.SeedSequence().entropy % 2**31)


def run(optimizer, seed, dtype=np.float64, steps=range(STEPS)):
    for step in steps:
        gradients = drawn([seed, step], dtype)
        before = {name: g.copy() for name, g in gradients.items()}
        optimizer.step(gradients, lr=0.1 / (1 + step))
        assert all(np.array_equal(g, before[name]) for name, g in gradients.items())


def by_formula(seed, rule):
    """Every parameter on its own: ``rule(w, g, lr, t, memory) -> w``, t from 1."""
    result = {}
    for name, w in drawn(seed).items():
        memory = {}
        for step in range(STEPS):
            w = rule(w, drawn([seed, step])[name], 0.1 / (1 + step), step + 1, memory)
        result[name] = w
    return result


def heavy_ball(momentum, nesterov, decay):
    def rule(w, g, lr, t, memory):
        d = g + decay * w
        history = memory.setdefault("d", [])
        history.append(d)
        v = sum(momentum ** (len(history) - 1 - i) * one for i, one in enumerate(history))
        return w - lr * (d + momentum * v if nesterov else v)

    return rule


def moments(memory, g, b1, b2, t):
    history = memory.setdefault("g", [])
    history.append(g)
    m = sum((1 - b1) * b1 ** (t - 1 - i) * one for i, one in enumerate(history)) / (1 - b1**t)
    s = sum((1 - b2) * b2 ** (t - 1 - i) * one**2 for i, one in enumerate(history)) / (1 - b2**t)
    return m, s


def adam(b1, b2, eps, decay, decoupled):
    def rule(w, g, lr, t, memory):
        m, s = moments(memory, g if decoupled else g + decay * w, b1, b2, t)
        return (w - lr * decay * w if decoupled else w) - lr * m / (np.sqrt(s) + eps)

    return rule


def lars(momentum, decay, trust):
    def rule(w, g, lr, t, memory):
        r, beta = 1.0, 0.0
        if w.ndim > 1:
            beta = decay
            r = trust * np.linalg.norm(w) / (np.linalg.norm(g) + beta * np.linalg.norm(w))
        memory["v"] = momentum * memory.get("v", 0.0) + lr * r * (g + beta * w)
        return w - memory["v"]

    return rule


def lamb(b1, b2, eps, decay):
    def rule(w, g, lr, t, memory):
        m, s = moments(memory, g, b1, b2, t)
        u = m / (np.sqrt(s) + eps)
        if w.ndim <= 1:
            return w - lr * u
        u = u + decay * w
        return w - lr * np.linalg.norm(w) / np.linalg.norm(u) * u

    return rule


CASES = {
    "sgd": heavy_ball(0, False, 0),
    "sgd:momentum=0.9": heavy_ball(0.9, False, 0),
    "sgd:momentum=0.9,nesterov=yes,weight_decay=0.01": heavy_ball(0.9, True, 0.01),
    "adam": adam(0.9, 0.999, 1e-8, 0, False),
    "adam:beta1=0.25,beta2=0.5,weight_decay=0.1": adam(0.25, 0.5, 1e-8, 0.1, False),
    "adam:weight_decay=0.1,decoupled=yes": adam(0.9, 0.999, 1e-8, 0.1, True),
    "lars:weight_decay=0.01": lars(0.9, 0.01, 0.001),
    "lars:trust_coefficient=0.02": lars(0.9, 0, 0.02),
    "lamb:weight_decay=0.01": lamb(0.9, 0.999, 1e-6, 0.01),
}


@pytest.mark.parametrize("text", CASES)
def test_equals_its_formula(text, seed):
    parameters = drawn(seed)
    run(optim.make(text, parameters), seed)
    for name, expected in by_formula(seed, CASES[text]).items():
        np.testing.assert_allclose(parameters[name], expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("text", CASES)
def test_state_goes_out_and_in_bit_for_bit(text, seed):
    straight = drawn(seed, np.float32)
    first = optim.make(text, straight)
    run(first, seed, np.float32, range(3))
    state, halfway = first.state_dict(), {name: w.copy() for name, w in straight.items()}
    run(first, seed, np.float32, range(3, STEPS))
    again = optim.make(text, halfway)
    again.load_state_dict(state)
    run(again, seed, np.float32, range(3, STEPS))
    assert again.steps == STEPS and all(w.dtype == np.float32 for w in halfway.values())
    assert all(halfway[name].tobytes() == straight[name].tobytes() for name in straight)


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("sgd:momentum=0.9,weight_decay=0.01", lambda t, p: t.optim.SGD(p, lr=1, momentum=0.9, weight_decay=0.01)),
        ("sgd:momentum=0.9,nesterov=yes", lambda t, p: t.optim.SGD(p, lr=1, momentum=0.9, nesterov=True)),
        # Where decay and gradient cancel, eps divides what the two round differently: 1e-8 would show it.
        ("adam:weight_decay=0.01,eps=1e-3", lambda t, p: t.optim.Adam(p, lr=1, weight_decay=0.01, eps=1e-3)),
        ("adam:weight_decay=0.01,decoupled=yes", lambda t, p: t.optim.AdamW(p, lr=1, weight_decay=0.01)),
    ],
    ids=["sgd", "nesterov", "adam", "adamw"],
)
def test_equals_torch(text, make, seed):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    parameters = drawn(seed, np.float32)
    theirs = {name: torch.nn.Parameter(torch.tensor(w)) for name, w in parameters.items()}
    run(optim.make(text, parameters), seed, np.float32)
    optimizer = make(torch, list(theirs.values()))
    for step in range(STEPS):
        for name, g in drawn([seed, step], np.float32).items():
            theirs[name].grad = torch.tensor(g)
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
        optimizer.step()
    for name, w in parameters.items():
        np.testing.assert_allclose(w, theirs[name].detach().numpy(), rtol=1e-6, atol=1e-6)


def test_norms_of_zero_leave_the_rate_as_it_is():
    for text in ("lars:momentum=0", "lamb"):
        parameters = {"w": np.zeros((2, 2))}
        optim.make(text, parameters).step({"w": np.ones((2, 2))}, lr=0.5)
        np.testing.assert_allclose(parameters["w"], -0.5, rtol=1e-5)


def test_sam_takes_the_gradient_from_above_and_comes_back(seed):
    """On f = x^2 / 2: up to x + rho x/|x|, where the gradient is that point."""
    x = {"a": drawn(seed)["weight"], "b": drawn(seed)["bias"]}
    before = {name: one.copy() for name, one in x.items()}
    length = math.sqrt(sum((one**2).sum() for one in x.values()))
    sam = optim.SAM(x, rho=0.3)
    sam.ascend({name: one.copy() for name, one in x.items()})
    for name, one in x.items():
        np.testing.assert_allclose(one, before[name] * (1 + 0.3 / length), rtol=1e-12)
    sam.descend()
    assert all(np.array_equal(x[name], before[name]) for name in x)
    sam.ascend({name: one * 0 for name, one in x.items()})
    assert all(np.array_equal(x[name], before[name]) for name in x)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p: optim.make("rmsprop", p), "unknown optimizer 'rmsprop'; there are: sgd, adam, lars, lamb"),
        (lambda p: optim.make("sgd:beta=1", p), "optimizer sgd has no option 'beta'"),
        (lambda p: optim.make("sgd:momentum", p), "options are written name=value"),
        (lambda p: optim.make("adam:beta1=1", p), "beta1 must be in"),
        (lambda p: optim.make("sgd", p).step(p, lr=math.nan), "lr must be at least 0 and finite, got nan"),
        (lambda p: optim.make("sgd", p).step({}, lr=1), "gradients must have the parameters' names"),
        (lambda p: optim.make("sgd", p).load_state_dict({"name": "adam"}), "must be of optimizer sgd, got adam"),
        (lambda p: optim.make("sgd", p).load_state_dict({"name": "sgd", "steps": 1}), "got none"),
        (lambda p: optim.SAM(p, rho=0), "rho must be positive"),
        *((lambda p, name=name: optim.make(name, {"w": np.ones(3, np.float16)}),
           f"{name} takes parameters of float32, float64, got float16 of w") for name in ("adam", "lars", "lamb")),
    ],
)
def test_what_is_refused(call, text):
    with pytest.raises(InvalidArgument, match=text):
        call({"w": np.zeros(3)})


def test_rates():
    assert [rates.make("constant", 0.5, 10, 3)(step) for step in (0, 99)] == [0.5, 0.5]
    drop = rates.make("step:at=1+2.5,factor=0.5", 0.8, 10, 3)
    assert [drop(step) for step in (0, 9, 10, 24, 25, 99)] == [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]
    cosine = rates.make("cosine:end=0.1", 1.0, 10, 2)
    assert [cosine(step) for step in (0, 10, 20, 50)] == pytest.approx([1.0, 0.55, 0.1, 0.1])
    warm = rates.make("cosine", 1.0, 10, 10, warmup=2, start=0.25)
    assert warm(0) == 0.25 and warm(20) == cosine_at(20, 100) and warm(10) == (0.25 + cosine_at(10, 100)) / 2


def cosine_at(step, steps):
    return (1 + math.cos(math.pi * step / steps)) / 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("exponential", 1, 1, 1), "unknown schedule of the learning rate 'exponential'"),
        (("step", 1, 1, 1), "at must be epochs, at most 1e"),
        (("step:at=2+x", 1, 1, 1), "got '2"),
        (("constant", 0, 1, 1), "learning rate must be positive"),
        (("step:at=1e308", 1, 1, 1), "at must be epochs, at most 1e"),
        (("constant", 1, 1, 1, -1), "warm-up from 0 to 1e"),
        (("constant", 1, 1, 1, 1e308), "warm-up from 0 to 1e"),
    ],
)
def test_rates_refuse(arguments, text):
    with pytest.raises(InvalidArgument, match=text):
        rates.make(*arguments)
