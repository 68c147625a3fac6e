"""Checks of ``DistributedOptimizer``, before and during training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..errors import InvalidArgument
from ..schemes.compatibility import NONFINITE
from ..schemes.registry import Scheme
from .flat import COMPUTE, Named


def trainable(named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> Named:
    """Those that require gradients, each once: modules that share one are the same parameter."""
    first: dict[torch.nn.Parameter, str] = {}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            first.setdefault(parameter, name)
    return [(name, parameter) for parameter, name in first.items()]


def check_parameters(optimizer: torch.optim.Optimizer, named: Named) -> None:
    """Refuse parameters that would be averaged and not updated, or updated and not averaged."""
    if not named:
        raise InvalidArgument("named_parameters must have a parameter that requires gradients, got none")
    kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in COMPUTE)
    for name, parameter in named:
        if parameter.dtype not in COMPUTE:
            raise InvalidArgument(f"parameter {name} must be one of {kinds}, got {parameter.dtype}")
    updated = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    if left := [name for name, parameter in named if parameter not in updated]:
        raise InvalidArgument(f"the optimizer must have all parameters, it lacks {', '.join(left)}: give them to the "
                              "optimizer, or freeze them by requires_grad_(False)")
    known = {parameter for _, parameter in named}
    if extra := sum(parameter.requires_grad and parameter not in known for parameter in updated):
        raise InvalidArgument(f"named_parameters must name all parameters of the optimizer, {extra} are missing: "
                              "pass model.named_parameters()")


def check_momentum(optimizer: torch.optim.Optimizer, scheme: Scheme) -> None:
    """Refuse to apply momentum twice."""
    momentum = max(map(momentum_of, optimizer.param_groups), default=0.0)
    if momentum and scheme.takes_momentum:
        option = "momentum" if "momentum" in scheme.options else "beta1"
        raise InvalidArgument(f"scheme {scheme} holds the momentum: the optimizer's must be 0, got {momentum:g}. Write "
                              f"{scheme.replace(**{option: momentum})} and give the optimizer none (momentum=0, or 0 "
                              "as the first of betas), or take memory=residual")


def momentum_of(group: Mapping[str, Any]) -> float:
    """The momentum of a parameter group: ``momentum`` as in SGD, RMSprop and LARS, or Adam's first ``betas``."""
    betas = group.get("betas") or (group.get("beta1"),)
    return max(float(group.get("momentum") or 0), float(betas[0] or 0))


def check_graph(optimizer: torch.optim.Optimizer, mine: set[torch.nn.Parameter]) -> None:
    """Refuse parameters that came to be trained after the hooks were set."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter not in mine:
                raise InvalidArgument(f"a parameter of shape {list(parameter.shape)} was added or unfrozen after "
                                      "DistributedOptimizer was made: close() it and make another")


def check_nonfinite(policy: str) -> None:
    if policy not in NONFINITE:
        raise InvalidArgument(f"nonfinite must be one of {', '.join(NONFINITE)}, got {policy!r}")
