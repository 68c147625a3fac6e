"""Check what a rank passes to ``DistributedOptimizer`` and ``ddp_hook``, and write it as the text that ranks compare.

Whatever decides the number or the order of collectives is in that text. Ranks compare it before the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypedDict

import torch

from ..errors import InvalidArgument
from ..schemes.registry import Scheme
from ..schemes.timing import Trace
from .flat import Named, bucket_size
from .refusals import check_momentum, check_nonfinite, check_parameters, trainable

OPTIONS = ("algorithm", "densities", "measures", "trace")  # of a Reducer, beside those with arguments of their own


class Options(TypedDict, total=False):
    """Further options of a ``Reducer``, for ``DistributedOptimizer``."""

    algorithm: str
    densities: Mapping[str, float] | None
    measures: int
    trace: Trace | None


class HookOptions(Options, total=False):
    """Further options of a ``Reducer``, for ``ddp_hook``."""

    nonfinite: str


class Settings(NamedTuple):
    """Checked arguments of a ``DistributedOptimizer``.

    Attributes
    ----------
    given, named : list of (name, parameter)
        All parameters, and those that require gradients.
    scaler : GradScaler or None
    text : str
        Settings that must be the same on all ranks, beside names, shapes and dtypes of the parameters.
    """

    given: Named
    named: Named
    scheme: Scheme
    bucket_bytes: int
    scaler: torch.amp.GradScaler | None
    nonfinite: str
    text: str


def settle(optimizer: torch.optim.Optimizer, parameters: object, scheme: str | Scheme, bucket_bytes: int | None,
           grad_scaler: torch.amp.GradScaler | None, nonfinite: str, options: Options, **others: bool) -> Settings:
    """Check the settings of this rank; ``others`` are flags that must be the same on all ranks."""
    given, parsed = pairs(parameters), Scheme.parse(scheme)
    named = trainable(given)
    check_parameters(optimizer, named)
    check_names(given, parsed)
    check_momentum(optimizer, parsed)
    check_nonfinite(nonfinite)
    if unknown := sorted(set(options.get("densities") or {}) - {name for name, _ in named}):
        raise InvalidArgument(f"densities must name parameters of the model, got {', '.join(unknown)}")
    scaler = enabled_scaler(grad_scaler)
    nbytes = bucket_size(named, bucket_bytes)
    groups = [len(group["params"]) for group in optimizer.param_groups]
    devices = sorted({parameter.device.type for _, parameter in named})
    flags = " ".join(f"{name}={value}" for name, value in others.items())
    text = (f"DistributedOptimizer of {type(optimizer).__name__} of groups {groups} on {', '.join(devices)} "
            f"scheme={parsed} bucket_bytes={nbytes} grad_scaler={scaler is not None} {flags} "
            f"{options_text({**options, 'nonfinite': nonfinite})}")
    return Settings(given, named, parsed, nbytes, scaler, nonfinite if scaler is None else "skip", text)


def enabled_scaler(grad_scaler: torch.amp.GradScaler | None) -> torch.amp.GradScaler | None:
    """The scaler, if it scales; refuse what is none."""
    if grad_scaler is not None and not hasattr(grad_scaler, "is_enabled"):
        raise InvalidArgument(f"grad_scaler must be a GradScaler, got {type(grad_scaler).__name__}")
    return grad_scaler if grad_scaler and grad_scaler.is_enabled() else None


def settle_hook(scheme: str | Scheme, parameters: object, options: HookOptions) -> tuple[Scheme, Named, str]:
    """Check a rank's arguments of ``ddp_hook``; return scheme, parameters and the text that ranks compare."""
    parsed, given = Scheme.parse(scheme), pairs(parameters)
    check_names(given, parsed)
    check_nonfinite(options.get("nonfinite", "raise"))
    return parsed, given, f"ddp_hook scheme={parsed} {options_text(options)}"


def pairs(parameters: object) -> Named:
    """(name, parameter) of ``model.named_parameters()``; of ``model.parameters()`` with numbers as names."""
    if isinstance(parameters, str | Mapping) or not isinstance(parameters, Iterable):
        raise InvalidArgument(_unlike(parameters))
    named: Named = []
    for i, one in enumerate(parameters):
        name, parameter = one if isinstance(one, tuple | list) and len(one) == 2 else (f"parameter {i}", one)
        if not isinstance(name, str) or not issubclass(type(parameter), torch.Tensor):
            raise InvalidArgument(_unlike(one))
        named.append((name, parameter))
    return named


def _unlike(given: object) -> str:
    return f"named_parameters must be model.named_parameters() or model.parameters(), got a {type(given).__name__}"


def check_names(given: Named, scheme: Scheme) -> None:
    """Refuse a name of two parameters, of which a Reducer would see one; and numbers where a scheme reads names."""
    first: dict[str, torch.nn.Parameter] = {}
    for name, parameter in given:
        if first.setdefault(name, parameter) is not parameter:
            raise InvalidArgument(f"{name} names two parameters: give each its own name, such as by "
                                  "model.named_parameters(prefix='generator'), or pass parameters without names")
    if "norm" in scheme.options["dense"].split("+") and any(name.startswith("parameter ") for name in first):
        raise InvalidArgument(f"dense=norm goes by the names of parameters, which {scheme} has not got: pass "
                              "model.named_parameters()")


def options_text(options: HookOptions) -> str:
    """Return the options for a Reducer as ranks compare them; refuse unknown ones."""
    values: dict[str, object] = {"nonfinite": "raise", "algorithm": "auto", "measures": 0, **options}
    if unknown := [name for name in options if name not in ("nonfinite", *OPTIONS)]:
        raise InvalidArgument(f"no option {', '.join(unknown)}: the options are {', '.join(OPTIONS)}")
    densities = dict(sorted((options.get("densities") or {}).items()))
    plain = " ".join(f"{name}={values[name]}" for name in ("nonfinite", "algorithm", "measures"))
    return f"{plain} densities={densities} trace={is_traced(options)}"


def is_traced(options: Options) -> bool:
    """Return True if the options have a recorder that records."""
    trace = options.get("trace")
    return trace is not None and bool(trace.enabled)
