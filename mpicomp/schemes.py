"""The registry of schemes: every published system as a composition of memory, selector, codec and exchange.

A scheme is written the same way everywhere (Python, command line, trace): ``name:option=value,option=value``,
for example ``scalecom:chunk=112,beta=0.1``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .buckets import DENSE_RULES
from .codecs import CODECS
from .errors import InvalidArgument
from .exchanges import EXCHANGES
from .memories import MEMORIES
from .options import Option, resolve
from .schedules import SCHEDULES
from .selectors import SELECTORS


@dataclass(frozen=True)
class Composition:
    """One line of the table: the declared names of the parts, and what is specific to the system."""

    name: str
    memory: str
    selector: str
    codec: str
    exchange: str
    reference: str
    wire: str  # bytes a rank sends; p ranks, n elements, k of them sent, v and i bytes a value and an index
    defaults: dict[str, Any] = field(default_factory=dict)  # where they differ from the parts' own
    schedule: str = "warm-up"


COMPOSITIONS = {
    line.name: line
    for line in (
        Composition("dense", "none", "all", "float", "dense",
                    "Patarasuk and Yuan 2009; Thakur et al. 2005", "2 (p-1)/p n v"),
        Composition("half", "none", "all", "float", "dense",
                    "Micikevicius et al. 2018", "2 (p-1)/p n 2", {"values": "float16"}),
        Composition("scalecom", "residual", "chunk-max", "float", "leader",
                    "Chen et al., ScaleCom, NeurIPS 2020", "2 (p-1)/p k v + k i, i = 1 or 2"),
        Composition("topk", "residual", "top-k", "float", "gather",
                    "Aji and Heafield 2017; Stich et al. 2018", "(p-1) k (v + i), i <= 4", {"layers": "per-tensor"}),
        Composition("topk-global", "residual", "top-k", "float", "gather",
                    "Aji and Heafield 2017; Stich et al. 2018", "(p-1) k (v + i), i <= 4"),
        Composition("threshold", "residual", "threshold", "float", "gather",
                    "Sahu et al., NeurIPS 2021", "(p-1) k (v + i), k as many as pass, i <= 4"),
        Composition("gtopk", "residual", "top-k", "float", "merge",
                    "Shi et al., gTop-k, ICDCS 2019", "2 (p-1)/p k (v + i), on rank 0 log2(p) times k (v + i)"),
        Composition("oktopk", "residual", "top-k", "float", "balanced",
                    "Li and Hoefler, Ok-Topk, PPoPP 2022", "about 2 (p-1)/p k (v + i), at most 3 (p-1)/p k (v + i)"),
        Composition("powersgd", "residual", "all", "float", "low-rank",
                    "Vogels et al., PowerSGD, NeurIPS 2019",
                    "2 (p-1)/p r (rows + columns) v of each matrix, 2 (p-1)/p v of an element of a vector"),
        Composition("sketchsgd", "residual", "top-k", "float", "sketch",
                    "Ivkin et al., SketchedSGD, NeurIPS 2019", "2 (p-1)/p (rows columns + factor k) v",
                    {"density": 0.001}),
    )
}

PARTS = {"memory": MEMORIES, "selector": SELECTORS, "codec": CODECS, "exchange": EXCHANGES, "schedule": SCHEDULES}


COMMON = (
    Option("layers", str, "whole", "select in the whole model, or in each array by itself",
           choices=("whole", "per-tensor")),
    Option("dense", str, "none", "arrays that go uncompressed: by place, dimension, name (norm, bn, bias)",
           words=DENSE_RULES),
    Option("seed", int, 0, "of the random numbers of stochastic parts", low=0),
    *(Option(kind, str, None, f"another {kind} than the scheme's own", choices=tuple(registry))
      for kind, registry in PARTS.items()),
)


class Parts(NamedTuple):
    """The parts of a scheme, made for one reducer; the memory once for each of its workers."""

    memories: list[Any]
    selector: Any
    codec: Any
    exchange: Any
    schedule: Any


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
        classes = _classes(self._composition, defaults)
        object.__setattr__(self, "options", resolve(_declared(classes), defaults, f"scheme {self.name}"))
        _check_fit(**classes)
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
        classes = _classes(self._composition, self.options)
        memories = [self._make(classes["memory"]) for _ in range(workers)]
        return Parts(memories, *(self._make(classes[kind]) for kind in ("selector", "codec", "exchange", "schedule")))

    @property
    def _composition(self) -> Composition:
        return COMPOSITIONS[self.name]

    def _make(self, part: type) -> Any:
        return part(**{option.name: self.options[option.name] for option in part.options})


def names() -> list[str]:
    """The names of all schemes."""
    return list(COMPOSITIONS)


def table() -> list[dict[str, Any]]:
    """One row a scheme: its parts, options (default, range, meaning), wire cost and reference."""
    return [_row(line) for line in COMPOSITIONS.values()]


def _row(line: Composition) -> dict[str, Any]:
    return {
        "name": line.name, **{kind: getattr(line, kind) for kind in PARTS},
        "options": [
            {"name": o.name, "default": line.defaults.get(o.name, o.default), "range": o.range, "meaning": o.meaning}
            for o in _declared(_classes(line, {}))
        ],
        "wire": line.wire, "reference": line.reference,
    }


def _classes(line: Composition, options: dict[str, Any]) -> dict[str, type]:
    """The classes of a composition's parts, with those that options put in their place."""
    return {
        kind: registry.get(options.get(kind), registry[getattr(line, kind)])  # a wrong name is refused with the options
        for kind, registry in PARTS.items()
    }


def _declared(classes: dict[str, type]) -> list[Option]:
    """Every option of the parts, each once, and those all schemes have."""
    options = {option.name: option for part in classes.values() for option in part.options}
    return [*options.values(), *COMMON]


def _check_fit(memory: type, selector: type, codec: type, exchange: type, schedule: type) -> None:
    """Refuse parts that cannot work together."""
    everything = selector.name == "all"
    fits = {
        "any": not hasattr(selector, "sketch"), "all": everything, "some": hasattr(selector, "wire_like"),
        "counted": hasattr(selector, "counts"), "agreed": hasattr(selector, "sketch"),
    }
    if not fits[exchange.takes]:
        possible = {"any": "one that chooses by itself", "all": "all", "some": "one that chooses some",
                    "counted": "one with a density", "agreed": "one that can be agreed on"}
        raise InvalidArgument(
            f"exchange {exchange.name} takes as selector {possible[exchange.takes]}, got {selector.name}"
        )
    if (exchange.codecs == "addable" and not codec.addable) or (exchange.codecs == "float" and codec.name != "float"):
        raise InvalidArgument(f"exchange {exchange.name} adds codes up, which {codec.name} does not allow; "
                              "take exchange=gather or another codec")
