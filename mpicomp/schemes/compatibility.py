"""Checks of a scheme's parts and of a reducer's arguments; warnings about rarely useful combinations."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import InvalidArgument, SchemeWarning
from .interfaces import AnyExchange, Codec, Selector
from .parts import Parts

NONFINITE = ("raise", "skip", "allow")
RATE_LIMIT = 3.0  # of rate_factor


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


# What a candidate may have where the scheme that it is a candidate of has another.
ORDINARY = (("memory", "none"), ("memory", "residual"), ("schedule", "warm-up"), ("layers", "whole"))


def check_candidate(text: str, parts: Parts, own: Parts, shared: list[str], layers: tuple[str, str]) -> None:
    """Refuse a candidate that cannot take turns with others over one memory.

    It is written ``text``, and has ``parts`` as a scheme of its own; ``own`` are those of the scheme that it is a
    candidate of. ``shared`` are options that it was given and that are not its to choose; ``layers`` that of both.
    """
    kept = own.memories[0]
    if parts.exchange.chooses:
        raise InvalidArgument(f"candidate {text} has candidates itself: give those instead")
    if shared:
        raise InvalidArgument(f"candidate {text}: {', '.join(shared)} must be the same of all candidates; give it to "
                              "the scheme instead (auto:OPTION=VALUE,candidates=...)")
    for kind, one, other in (("memory", parts.memories[0].name, kept.name),
                             ("schedule", parts.schedule.name, own.schedule.name), ("layers", *layers)):
        if one != other and (kind, one) not in ORDINARY:
            raise InvalidArgument(f"candidate {text} has {kind}={one}, all candidates share {kind}={other}: give the "
                                  f"scheme {kind}={one}, or leave out {text}")
    if parts.exchange.stateful:
        raise InvalidArgument(f"candidate {text}: exchange {parts.exchange.name} has a state of its own, which steps "
                              f"of other candidates would make stale; leave out {text}")


def check_candidates(parts: Parts) -> None:
    """Refuse a choice among fewer than two candidates, and memories that some steps send nothing of."""
    memory, texts = parts.memories[0], [one.text for one in parts.exchange.candidates]
    if len(texts) < 2 or len(set(texts)) < len(texts):
        raise InvalidArgument(f"candidates must be at least two different schemes joined by +, got {'+'.join(texts)}")
    if memory.local_steps or memory.diverges:
        raise InvalidArgument(f"memory {memory.name} gives ranks results of their own, which candidates cannot take "
                              "over from each other; expected memory=residual or another that all ranks share")


def check_clock(chooses: bool, reproducible: bool, scheme: str) -> None:
    """Refuse a scheme that follows the clock on a communicator that promises the same bits in every run."""
    if chooses and reproducible:
        raise InvalidArgument(f"{scheme} chooses by measured seconds, so that two runs have different bits, and the "
                              "communicator was made with reproducible=True: take the scheme that stats.chosen "
                              "reports, or a communicator without")


def whole_vectors(options: Mapping[str, Any]) -> str | None:
    """Why a scheme needs the whole vector of a worker; None if slices of it do."""
    if options.get("k") is not None:
        return f"needs a density, got k={options['k']}: a rank selects in a slice"
    if options.get("clip"):
        return (f"does not work with clip={options['clip']:g}, which needs the norm of a worker's whole gradient: clip "
                "gradients before they are reduced")
    return None


def check_nodes(options: Mapping[str, Any]) -> None:
    """Refuse options about a worker's whole vector with nodes=yes, which gives a rank a slice of it."""
    reason = whole_vectors(options)
    if options["nodes"] == "yes" and reason is not None:
        raise InvalidArgument(f"nodes=yes {reason}")


def check_arguments(workers: int, nonfinite: str, measures: int, scheme: str, options: Mapping[str, Any]) -> None:
    """Refuse arguments of a Reducer that are out of range."""
    if workers < 1:
        raise InvalidArgument(f"workers must be at least 1 on every rank, got {workers}")
    if nonfinite not in NONFINITE:
        raise InvalidArgument(f"nonfinite must be one of {', '.join(NONFINITE)}, got {nonfinite!r}")
    if measures < 0:
        raise InvalidArgument(f"measures must be 0 (never) or a number of steps, got {measures}")
    if measures and options["nodes"] == "yes":
        raise InvalidArgument(f"measures of whole vectors need nodes=no, got {scheme}")


def check_densities(densities: Mapping[str, float], scheme: str, layers: str, parts: Parts) -> None:
    """Refuse densities of single arrays that are out of range, or that no selector of the scheme asks for."""
    if layers != "per-tensor":
        raise InvalidArgument(f"densities of single arrays need layers=per-tensor, got {scheme}")
    for name, density in densities.items():
        if not 0 < density <= 1:
            raise InvalidArgument(f"densities must be in (0, 1], got {density} for {name}")
    selectors = [one.selector for one in parts.exchange.candidates] or [parts.selector]
    if any(density < 1 for density in densities.values()) and not any(one.per_span for one in selectors):
        raise InvalidArgument("densities below 1 of single arrays need a selector that has one for each array, such as "
                              f"top-k or chunk-max, got {scheme} with "
                              f"selector {', '.join(one.name for one in selectors)}")


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
    finer = f"{codec.finer}, or " if codec.finer else ""
    if memory.remembers and beta * error >= 2 - beta:
        yield f"{size}, so that memory {memory.name} lets it grow: take {finer}memory=none"
    if exchange.second_memory and error >= 1:
        yield f"{size}, so that the second memory of {exchange.name} lets it grow: take {finer}second=no"
    yield from parts.selector.warning_texts()
    for one in (one for one in exchange.candidates if one.keeps):
        yield from warning_texts(parts._replace(selector=one.selector, codec=one.codec, exchange=one.exchange))


def rate_factor(parts: Parts) -> float:
    """Factor of Adam's learning rate at which training keeps its pace; 1 if nothing waits.

    What waited for about 1 / density steps arrives at once. Adam divides it by the root of its mean square, so that
    the sum of its steps shrinks by sqrt(density). The limit is measured (docs/fidelity.md, under Adam).
    """
    memory, density = parts.memories[0], parts.selector.nominal_density
    if memory.takes_momentum or memory.diverges or memory.estimates:
        return 1.0
    return 1 / max(math.sqrt(density), 1 / RATE_LIMIT)


def adam_warning_texts(parts: Parts, layers: str) -> Iterator[str]:
    """Sentences on what is known to lose under Adam, and what to take instead."""
    factor = rate_factor(parts)
    if factor == 1.0:
        return
    yield ("under Adam values that wait arrive as rare, large ones, which Adam makes small: take 1-bit Adam "
           "(OneBitAdam, --optimizer onebit-adam), or memory=adam-update and plain SGD with Adam's learning rate, "
           f"or try {factor:.3g} times the rate (Scheme.rate_factor)")
    if parts.selector.by_magnitude and layers == "whole":
        yield (f"selector {parts.selector.name} compares all arrays of a model, and under Adam those of small "
               "gradients, such as embeddings, learn hardly anything: take layers=per-tensor")
