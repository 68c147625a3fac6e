"""The registry of schemes: every published system as a composition of memory, selector, codec and exchange.

A scheme is written the same way everywhere (Python, command line, trace): ``name:option=value,option=value``,
for example ``scalecom:chunk=112,beta=0.1``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .codecs import CODECS
from .errors import InvalidArgument
from .exchanges import EXCHANGES
from .memory import MEMORIES
from .options import Option, resolve
from .selectors import SELECTORS


@dataclass(frozen=True)
class Composition:
    """One line of the table: the declared names of the four parts, and what is specific to the system."""

    name: str
    memory: str
    selector: str
    codec: str
    exchange: str
    reference: str
    wire: str  # bytes a rank sends; p ranks, n elements, k of them sent, v and i bytes a value and an index
    defaults: dict[str, Any] = field(default_factory=dict)  # where they differ from the part's own


COMPOSITIONS = {
    line.name: line
    for line in (
        Composition("dense", "none", "all", "float", "dense",
                    "Patarasuk and Yuan 2009; Thakur et al. 2005", "2 (p-1)/p n v"),
        Composition("scalecom", "residual", "chunk-max", "float", "leader",
                    "Chen et al., ScaleCom, NeurIPS 2020", "2 (p-1)/p k v + k i, i = 1 or 2"),
        Composition("topk", "residual", "top-k", "float", "gather",
                    "Aji and Heafield 2017; Stich et al. 2018", "(p-1) k (v + 4)"),
        Composition("threshold", "residual", "threshold", "float", "gather",
                    "Sahu et al., NeurIPS 2021", "(p-1) k (v + 4), k as many as pass"),
    )
}

COMMON = (
    Option("layers", str, "whole", "select in the whole model, or in each array by itself",
           choices=("whole", "per-tensor")),
    Option("memory", str, None, "another memory than the scheme's own", choices=tuple(MEMORIES)),
)


class Parts(NamedTuple):
    """The parts of a scheme, made for one reducer; the memory once for each of its workers."""

    memories: list[Any]
    selector: Any
    codec: Any
    exchange: Any


@dataclass(frozen=True)
class Scheme:
    """A named composition with its options resolved; an immutable value.

    Parameters
    ----------
    name : str
        One of ``mpicomp.schemes.names()``.
    given : dict
        The options that were given; all others have their defaults.
    """

    name: str
    given: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.name not in COMPOSITIONS:
            raise InvalidArgument(f"unknown scheme {self.name!r}; the schemes are: {', '.join(names())}")
        defaults = {**self._composition.defaults, **self.given}
        classes = self._classes(defaults.get("memory"))
        declared = [*(option for part in classes for option in part.options), *COMMON]
        object.__setattr__(self, "options", resolve(declared, defaults, f"scheme {self.name}"))
        self.parts(workers=1)  # a part may refuse a combination that each option alone allows

    @classmethod
    def parse(cls, text: str | Scheme) -> Scheme:
        """The scheme that ``name:option=value,...`` stands for.

        Raises
        ------
        InvalidArgument
            For an unknown scheme or option (with the choices) or a value out of range.
        """
        if isinstance(text, Scheme):
            return text
        name, _, rest = text.partition(":")
        given = {}
        for item in filter(None, (piece.strip() for piece in rest.split(","))):
            option, equals, value = (side.strip() for side in item.partition("="))
            if not equals or not value:
                raise InvalidArgument(f"options are written name=value, got {item!r} in {text!r}")
            if option in given:
                raise InvalidArgument(f"option {option!r} is given twice in {text!r}")
            given[option] = value
        return cls(name.strip(), given)

    def replace(self, **options: Any) -> Scheme:
        """The same scheme with ``options`` given instead."""
        return Scheme(self.name, {**self.given, **options})

    def __str__(self) -> str:
        shown = ",".join(f"{name}={self.options[name]}" for name in self.given)
        return f"{self.name}:{shown}" if shown else self.name

    def __hash__(self) -> int:
        return hash(str(self))

    def parts(self, workers: int) -> Parts:
        """Fresh parts for a reducer with ``workers`` workers on this rank."""
        memory, selector, codec, exchange = self._classes(self.options["memory"])
        return Parts(
            [self._make(memory) for _ in range(workers)],
            self._make(selector), self._make(codec), self._make(exchange),
        )

    @property
    def _composition(self) -> Composition:
        return COMPOSITIONS[self.name]

    def _classes(self, memory: str | None) -> tuple[type, type, type, type]:
        line = self._composition
        chosen = MEMORIES.get(memory or line.memory, MEMORIES[line.memory])
        return chosen, SELECTORS[line.selector], CODECS[line.codec], EXCHANGES[line.exchange]

    def _make(self, part: type) -> Any:
        return part(**{option.name: self.options[option.name] for option in part.options})


def names() -> list[str]:
    """The names of all schemes."""
    return list(COMPOSITIONS)


def table() -> list[dict[str, Any]]:
    """One row a scheme: its parts, options (default, range, meaning), wire cost and reference."""
    return [_row(line) for line in COMPOSITIONS.values()]


def _row(line: Composition) -> dict[str, Any]:
    parts = (MEMORIES[line.memory], SELECTORS[line.selector], CODECS[line.codec], EXCHANGES[line.exchange])
    options = [option for part in parts for option in part.options] + list(COMMON)
    return {
        "name": line.name, "memory": line.memory, "selector": line.selector,
        "codec": line.codec, "exchange": line.exchange,
        "options": [
            {"name": o.name, "default": line.defaults.get(o.name, o.default), "range": o.range, "meaning": o.meaning}
            for o in options
        ],
        "wire": line.wire, "reference": line.reference,
    }
