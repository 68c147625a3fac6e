"""Optimizers that torch lacks: LARS and LAMB for large batches, SAM for flat minima."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ..errors import InvalidArgument

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

Loss = TypeVar("Loss")


class LARS(torch.optim.Optimizer):
    """SGD with momentum whose step in each tensor is in proportion to the tensor's own norm.

    Schedule: local = trust_coefficient |w| / (|g| + weight_decay |w| + eps), 1 where |w| or |g| is 0;
    v <- momentum v + lr local (g + weight_decay w); w <- w - v.
    Restrictions: dense gradients. Biases and scales of normalisation usually get a group with weight_decay=0.

    Reference: You et al., Large Batch Training of Convolutional Networks, 2017, algorithm 1.
    """

    def __init__(self, params: ParamsT, lr: float, momentum: float = 0.9, weight_decay: float = 0.0,
                 trust_coefficient: float = 0.001, eps: float = 1e-8) -> None:
        _check_positive(lr=lr, trust_coefficient=trust_coefficient)
        _check_from_zero(momentum=momentum, weight_decay=weight_decay, eps=eps)
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay,
                                  "trust_coefficient": trust_coefficient, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Loss] | None = None) -> Loss | None:  # type: ignore[override]
        loss = _loss(closure)
        for group, parameter, gradient in _gradients(self):
            decay, size, length = group["weight_decay"], parameter.norm(), gradient.norm()
            local = group["trust_coefficient"] * size / (length + decay * size + group["eps"])
            local = torch.where((size > 0) & (length > 0), local, 1.0)
            velocity = self.state[parameter].setdefault("velocity", torch.zeros_like(parameter))
            velocity.mul_(group["momentum"]).add_(gradient.add(parameter, alpha=decay) * (group["lr"] * local))
            parameter.sub_(velocity)
        return loss


class LAMB(torch.optim.Optimizer):
    """Adam with decoupled weight decay whose step in each tensor is as long as lr times the tensor's own norm.

    Schedule: m, v and their bias corrections as in Adam; r = m / (sqrt(v) + eps) + weight_decay w;
    w <- w - lr |w| / |r| r, with the factor 1 where |w| or |r| is 0.
    Restrictions: dense gradients.

    Reference: You et al., Large Batch Optimization for Deep Learning, ICLR 2020, algorithm 2, phi the identity.
    """

    def __init__(self, params: ParamsT, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-6, weight_decay: float = 0.0) -> None:
        _check_positive(lr=lr)
        _check_from_zero(eps=eps, weight_decay=weight_decay)
        if not all(0 <= beta < 1 for beta in betas):
            raise InvalidArgument(f"betas must be in [0, 1), got {betas}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Loss] | None = None) -> Loss | None:  # type: ignore[override]
        loss = _loss(closure)
        for group, parameter, gradient in _gradients(self):
            state, (beta1, beta2) = self.state[parameter], group["betas"]
            if not state:
                state.update(step=0, m=torch.zeros_like(parameter), v=torch.zeros_like(parameter))
            state["step"] += 1
            state["m"].lerp_(gradient, 1 - beta1)
            state["v"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            m, v = (state[name] / (1 - beta ** state["step"]) for name, beta in (("m", beta1), ("v", beta2)))
            update = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * parameter
            size, length = parameter.norm(), update.norm()
            trust = torch.where((size > 0) & (length > 0), size / length, 1.0)
            parameter.sub_(group["lr"] * trust * update)
        return loss


class SAM(torch.optim.Optimizer):
    """Steps by the gradient at the worst point near the parameters, with any optimizer.

    Schedule: w' = w + rho g / |g|, g the gradient at w over all parameters; then ``base_optimizer`` steps from w by the
    gradient at w'. ``step`` needs a closure that clears the gradients, computes the loss and calls backward; before it,
    backward must have run once.
    Cost: two passes through the model a step, and a copy of the parameters during it.
    In parallel: backward the first time within ``DistributedOptimizer.no_sync()``, and every rank goes to its own worst
    point, as the paper does; only the second gradient is averaged.

    Reference: Foret et al., Sharpness-Aware Minimization, ICLR 2021, algorithm 1.
    """

    def __init__(self, base_optimizer: torch.optim.Optimizer, rho: float = 0.05) -> None:
        _check_from_zero(rho=rho)
        self.base_optimizer = base_optimizer
        super().__init__(base_optimizer.param_groups, {**base_optimizer.defaults, "rho": rho})
        self.param_groups, self.state = base_optimizer.param_groups, base_optimizer.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Loss] | None = None) -> Loss | None:  # type: ignore[override]
        if closure is None:
            raise InvalidArgument("SAM.step needs a closure that clears gradients, computes the loss, calls backward")
        gradients = list(_gradients(self))
        if not gradients:
            raise InvalidArgument("SAM.step needs the gradients at the parameters: call backward() before it")
        norm = torch.linalg.vector_norm(torch.stack([gradient.norm() for _, _, gradient in gradients]))
        kept = [(parameter, parameter.clone()) for _, parameter, _ in gradients]
        for group, parameter, gradient in gradients:
            parameter.add_(gradient * torch.where(norm > 0, group.get("rho", self.defaults["rho"]) / norm, 0.0))
        try:
            loss = _loss(closure)
        finally:
            for parameter, value in kept:
                parameter.copy_(value)
        self.base_optimizer.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base_optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.base_optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        self.base_optimizer.load_state_dict(state_dict)
        self.param_groups, self.state = self.base_optimizer.param_groups, self.base_optimizer.state


def _loss(closure: Callable[[], Loss] | None) -> Loss | None:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _gradients(optimizer: torch.optim.Optimizer) -> Iterable[tuple[dict[str, Any], torch.Tensor, torch.Tensor]]:
    """(group, parameter, gradient) of every parameter that has one."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield group, parameter, parameter.grad


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise InvalidArgument(f"{name} must be positive, got {value}")


def _check_from_zero(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise InvalidArgument(f"{name} must not be negative, got {value}")
