"""LARS, LAMB and SAM against their formulas, written out in NumPy."""

import needs_torch  # noqa: F401
import numpy as np
import pytest
import torch

from mpicomp.errors import InvalidArgument
from mpicomp.torch import LAMB, LARS, SAM, DistributedOptimizer

SHAPES = [(4, 3), (5,), (2, 2, 2)]
STEPS = 4


def run(make, gradients, start):
    """The parameters after an optimizer's steps by given gradients."""
    parameters = [torch.nn.Parameter(torch.tensor(w)) for w in start]
    optimizer = make(parameters)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = torch.tensor(gradient)
        optimizer.step()
    return [parameter.detach().numpy() for parameter in parameters]


@pytest.fixture
def data(seed):
    rng = np.random.default_rng(seed)
    start = [rng.standard_normal(shape) for shape in SHAPES]
    start[1][:] = 0  # a tensor without length
    return start, [[rng.standard_normal(shape) for shape in SHAPES] for _ in range(STEPS)]


def test_lars(data):
    start, gradients = data
    lr, momentum, decay, trust, eps = 0.3, 0.8, 0.01, 0.02, 1e-6
    expected = []
    for i, w in enumerate(start):
        w, v = w.copy(), np.zeros_like(w)
        for step in gradients:
            g, size = step[i], np.linalg.norm(w)
            local = trust * size / (np.linalg.norm(g) + decay * size + eps) if size > 0 else 1.0
            v = momentum * v + lr * local * (g + decay * w)
            w = w - v
        expected.append(w)
    got = run(lambda p: LARS(p, lr, momentum, decay, trust_coefficient=trust, eps=eps), gradients, start)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_lamb(data):
    start, gradients = data
    lr, (b1, b2), eps, decay = 0.05, (0.8, 0.95), 1e-5, 0.02
    expected = []
    for i, w in enumerate(start):
        w, m, v = w.copy(), np.zeros_like(w), np.zeros_like(w)
        for t, step in enumerate(gradients, 1):
            m = b1 * m + (1 - b1) * step[i]
            v = b2 * v + (1 - b2) * step[i] ** 2
            r = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps) + decay * w
            size, length = np.linalg.norm(w), np.linalg.norm(r)
            w = w - lr * (size / length if size > 0 and length > 0 else 1.0) * r
        expected.append(w)
    got = run(lambda p: LAMB(p, lr, (b1, b2), eps, decay), gradients, start)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11)


def quadratic(matrix, w):
    return 0.5 * w @ matrix @ w


@pytest.mark.parametrize("wrapped", [False, True])
def test_sam(comm, seed, wrapped):
    """On a quadratic, whose gradient anywhere is known."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((6, 6))
    matrix, w = root @ root.T, rng.standard_normal(6)
    parameter = torch.nn.Parameter(torch.tensor(w))
    optimizer = SAM(torch.optim.SGD([parameter], lr=0.01, momentum=0.9), rho=0.3)
    if wrapped:
        optimizer = DistributedOptimizer(optimizer, [("w", parameter)], comm)
    velocity = np.zeros(6)

    def closure():
        optimizer.zero_grad()
        loss = quadratic(torch.tensor(matrix), parameter)
        loss.backward()
        return loss

    for _ in range(STEPS):
        if wrapped:
            with optimizer.no_sync():
                closure()
        else:
            closure()
        optimizer.step(closure)
        g = matrix @ w
        velocity = 0.9 * velocity + matrix @ (w + 0.3 * g / np.linalg.norm(g))
        w = w - 0.01 * velocity
        np.testing.assert_allclose(parameter.detach().numpy(), w, rtol=1e-10, atol=1e-11)


def test_sam_goes_on_where_its_base_stopped():
    parameter = torch.nn.Parameter(torch.ones(3))
    base = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    parameter.grad = torch.ones(3)
    base.step()
    sam = SAM(torch.optim.SGD([parameter], lr=0.1, momentum=0.9), rho=0.3)
    sam.load_state_dict(base.state_dict())
    seen = []

    def closure():
        seen.append(parameter.detach().clone())
        return parameter.sum()

    before = parameter.detach().clone()
    sam.step(closure)
    torch.testing.assert_close(seen[0] - before, torch.full((3,), 0.3 / 3**0.5))


def test_state_goes_on(data):
    """Saved after two steps and loaded into a new optimizer."""
    start, gradients = data
    for kind in (lambda p: LARS(p, 0.1), lambda p: LAMB(p, 0.1)):
        whole = run(kind, gradients, start)
        parameters = [torch.nn.Parameter(torch.tensor(w)) for w in start]
        optimizer = kind(parameters)
        for number, step in enumerate(gradients):
            if number == 2:
                state, optimizer = optimizer.state_dict(), kind(parameters)
                optimizer.load_state_dict(state)
            for parameter, gradient in zip(parameters, step, strict=True):
                parameter.grad = torch.tensor(gradient)
            optimizer.step()
        for a, b in zip(parameters, whole, strict=True):
            np.testing.assert_array_equal(a.detach().numpy(), b)


def test_refusals():
    parameter = torch.nn.Parameter(torch.ones(2))
    for call, text in ((lambda: LARS([parameter], 0.0), "lr must be positive, got 0"),
                       (lambda: LARS([parameter], 0.1, momentum=-1), "momentum must not be negative"),
                       (lambda: LAMB([parameter], 0.1, (0.9, 1.0)), r"betas must be in \[0, 1\)"),
                       (lambda: SAM(torch.optim.SGD([parameter], 0.1), -1.0), "rho must not be negative"),
                       (lambda: SAM(torch.optim.SGD([parameter], 0.1)).step(), "needs a closure"),
                       (lambda: SAM(torch.optim.SGD([parameter], 0.1)).step(lambda: 0), r"call backward\(\) before")):
        with pytest.raises(InvalidArgument, match=text):
            call()
