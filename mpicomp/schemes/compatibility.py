"""Parts that cannot work together are refused; what hardly anybody wants is said when a scheme is made."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from ..errors import InvalidArgument, SchemeWarning

NONFINITE = ("raise", "skip", "allow")


def check_fit(memory: Any, selector: Any, codec: Any, exchange: Any, schedule: Any) -> None:
    """Refuse parts that cannot work together."""
    fits = {
        "any": not hasattr(selector, "sketch"), "all": selector.name == "all", "some": hasattr(selector, "wire_like"),
        "counted": hasattr(selector, "counts"), "agreed": hasattr(selector, "sketch"),
    }
    if not fits[exchange.takes]:
        possible = {"any": "one that chooses by itself", "all": "all", "some": "one that chooses some",
                    "counted": "one that sends exactly k", "agreed": "one that can be agreed on"}
        raise InvalidArgument(
            f"exchange {exchange.name} takes as selector {possible[exchange.takes]}, got {selector.name}"
        )
    if (exchange.codecs == "addable" and not codec.addable) or (exchange.codecs == "float" and codec.name != "float"):
        raise InvalidArgument(f"exchange {exchange.name} adds codes up, which {codec.name} does not allow; "
                              "take exchange=gather or another codec")


def check_threshold(codec: Any, selector: Any, options: dict[str, Any]) -> None:
    """Refuse a codec that sends its selector's threshold with a selector that has none."""
    if getattr(codec, "asks_threshold", False) and options["lam"] is None and not hasattr(selector, "threshold"):
        raise InvalidArgument(f"codec {codec.name} sends the selector's threshold, which {selector.name} does not "
                              "have: give lam, or take selector=threshold")


def check_arguments(workers: int, nonfinite: str, densities: dict[str, float], measures: int, scheme: Any) -> None:
    """Refuse arguments of a Reducer that are out of range."""
    if workers < 1:
        raise InvalidArgument(f"workers must be at least 1 on every rank, got {workers}")
    if nonfinite not in NONFINITE:
        raise InvalidArgument(f"nonfinite must be one of {', '.join(NONFINITE)}, got {nonfinite!r}")
    if measures < 0:
        raise InvalidArgument(f"measures must be 0 (never) or a number of steps, got {measures}")
    if densities and scheme.options["layers"] != "per-tensor":
        raise InvalidArgument(f"densities of single arrays need layers=per-tensor, got {scheme}")
    for name, density in densities.items():
        if not 0 < density <= 1:
            raise InvalidArgument(f"densities must be in (0, 1], got {density} for {name}")


def warn(scheme: Any, rank: int) -> None:
    """Say them on one rank, as a warning of who made the Reducer: Python shows each once."""
    for text in scheme.cautions() if rank == 0 else ():
        warnings.warn(f"{scheme}: {text}", SchemeWarning, stacklevel=3)


def cautions(memory: Any, selector: Any, codec: Any, exchange: Any) -> Iterator[str]:
    """One sentence for each, of the parts of a scheme."""
    yield from _growing_memory(memory, codec, exchange)
    yield from _long_sketches(selector)


def _growing_memory(memory: Any, codec: Any, exchange: Any) -> Iterator[str]:
    """A memory that keeps unbiased errors larger than the values.

    With an error of expected square ``s |u|^2`` the memory's square is multiplied by (1 - beta)^2 + beta^2 s a step.
    """
    spread, beta = getattr(codec, "spread", 0.0), getattr(memory, "beta", 1.0)
    size = f"the error of codec {codec.name} may have {spread:.3g} times the square of the values"
    if memory.remembers and beta * spread >= 2 - beta:
        yield f"{size}, so that memory {memory.name} lets it grow: take {codec.finer}, or memory=none"
    if getattr(exchange, "second", False) and spread >= 1:
        yield f"{size}, so that the second memory of {exchange.name} lets it grow: take {codec.finer}, or second=no"


def _long_sketches(selector: Any) -> Iterator[str]:
    """ARC-Top-k whose sketches are as long as what they stand for."""
    if selector.name == "rows" and selector.row <= selector.width:
        yield (f"the sketches of selector {selector.name} are as long as the gradient where row={selector.row} is no "
               f"more than width={selector.width}, so that more is sent than without compression: take row several "
               "times width, such as row=64,width=4")  # fmt: skip
