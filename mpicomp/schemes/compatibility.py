"""Checks of a scheme's parts and of a reducer's arguments; warnings about rarely useful combinations."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from ..errors import InvalidArgument, SchemeWarning
from .interfaces import AnyExchange, Codec, Parts, Selector

NONFINITE = ("raise", "skip", "allow")


SELECTORS = {  # by what an exchange takes: the kind of selector
    "any": "one that chooses by itself", "all": "all", "some": "one that chooses some",
    "counted": "one that sends exactly k", "agreed": "one that can be agreed on",
}


def check_fit(selector: type[Selector], codec: type[Codec], exchange: type[AnyExchange]) -> None:
    """Refuse parts that cannot work together."""
    fits = {
        "any": not selector.agreed, "all": selector.selects_all, "some": selector.broadcasts,
        "counted": selector.counted, "agreed": selector.agreed,
    }
    if not fits[exchange.takes]:
        raise InvalidArgument(
            f"exchange {exchange.name} takes as selector {SELECTORS[exchange.takes]}, got {selector.name}"
        )
    if (exchange.codecs == "addable" and not codec.addable) or (exchange.codecs == "float" and codec.name != "float"):
        raise InvalidArgument(f"exchange {exchange.name} adds codes up, which {codec.name} does not allow; "
                              "take exchange=gather or another codec")


def check_threshold(codec: type[Codec], selector: type[Selector], lam: float | None) -> None:
    """Refuse a codec that sends its selector's threshold with a selector that has none."""
    if codec.needs_threshold and lam is None and not selector.has_threshold:
        raise InvalidArgument(f"codec {codec.name} sends the selector's threshold, which {selector.name} does not "
                              "have: give lam, or take selector=threshold")


def check_arguments(workers: int, nonfinite: str, densities: dict[str, float], measures: int, layers: str,
                    scheme: str) -> None:
    """Refuse arguments of a Reducer that are out of range."""
    if workers < 1:
        raise InvalidArgument(f"workers must be at least 1 on every rank, got {workers}")
    if nonfinite not in NONFINITE:
        raise InvalidArgument(f"nonfinite must be one of {', '.join(NONFINITE)}, got {nonfinite!r}")
    if measures < 0:
        raise InvalidArgument(f"measures must be 0 (never) or a number of steps, got {measures}")
    if densities and layers != "per-tensor":
        raise InvalidArgument(f"densities of single arrays need layers=per-tensor, got {scheme}")
    for name, density in densities.items():
        if not 0 < density <= 1:
            raise InvalidArgument(f"densities must be in (0, 1], got {density} for {name}")


def warn(scheme: str, texts: list[str], rank: int) -> None:
    """Warn on one rank, as a warning of who made the Reducer: Python shows each once."""
    for text in texts if rank == 0 else ():
        warnings.warn(f"{scheme}: {text}", SchemeWarning, stacklevel=3)


def warning_texts(parts: Parts) -> Iterator[str]:
    """Sentences on combinations that are rarely useful."""
    memory, codec, exchange = parts.memories[0], parts.codec, parts.exchange
    # An error of expected square s |u|^2 multiplies the memory's square by (1 - beta)^2 + beta^2 s per step.
    error, beta = codec.error_factor, memory.beta
    size = f"the error of codec {codec.name} may have {error:.3g} times the square of the values"
    if memory.remembers and beta * error >= 2 - beta:
        yield f"{size}, so that memory {memory.name} lets it grow: take {codec.finer}, or memory=none"
    if exchange.second_memory and error >= 1:
        yield f"{size}, so that the second memory of {exchange.name} lets it grow: take {codec.finer}, or second=no"
    yield from parts.selector.warning_texts()
