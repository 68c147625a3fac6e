"""The registry of schemes: every published system as a composition of memory, selector, codec and exchange.

A scheme is written the same way everywhere (Python, command line, trace): ``name:option=value,option=value``,
for example ``scalecom:chunk=112,beta=0.1``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast

from .._util.suggestions import did_you_mean
from ..errors import InvalidArgument
from .codecs import CODECS
from .compatibility import (
    adam_warning_texts,
    check_candidate,
    check_candidates,
    check_fit,
    check_nodes,
    check_threshold,
    rate_factor,
    warning_texts,
    whole_vectors,
)
from .exchanges import EXCHANGES
from .interfaces import AnyExchange, Candidate, Codec, DensitySchedule, Memory, Part, Selector
from .memories import MEMORIES
from .options import DENSE_RULES, Option, resolve, written
from .parts import Parts
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
    wire: str  # bytes per rank; p ranks, n elements, k of them sent, v and i bytes per value and per index
    defaults: dict[str, Any] = field(default_factory=dict)  # where they differ from the parts' own
    schedule: str = "warm-up"
    with_memory: dict[str, Any] = field(default_factory=dict)  # defaults if a memory takes the place of none


COMPOSITIONS = {
    line.name: line
    for line in (
        Composition("dense", "none", "all", "float", "dense",
                    "Patarasuk and Yuan 2009; Thakur et al. 2005", "2 (p-1)/p n v"),
        Composition("half", "none", "all", "float", "dense",
                    "Micikevicius et al. 2018", "2 (p-1)/p n 2", {"values": "float16"}),
        Composition("scalecom", "residual", "chunk-max", "float", "leader",
                    "Chen et al., ScaleCom, NeurIPS 2020",
                    "2 (p-1)/p k v + k i, the leader up to ceil(log2 p) k i; i = 1 or 2"),
        Composition("topk", "residual", "top-k", "float", "gather",
                    "Aji and Heafield 2017; Stich et al. 2018", "(p-1) k (v + i), i <= 4", {"layers": "per-tensor"}),
        Composition("topk-global", "residual", "top-k", "float", "gather",
                    "Aji and Heafield 2017; Stich et al. 2018", "(p-1) k (v + i), i <= 4"),
        Composition("randomk", "residual", "random-k", "float", "agreed",
                    "Stich et al., Sparsified SGD with memory, NeurIPS 2018", "2 (p-1)/p k v"),
        Composition("threshold", "residual", "threshold", "float", "gather",
                    "Sahu et al., NeurIPS 2021", "(p-1) k (v + i), k as many as pass, i <= 4"),
        Composition("strom", "residual", "threshold", "fixed", "gather",
                    "Strom, Interspeech 2015", "(p-1) k (1/8 + i), k as many as pass, i <= 4"),
        Composition("dgc", "momentum-corrected", "sampled", "float", "gather",
                    "Lin et al., Deep Gradient Compression, ICLR 2018", "(p-1) k (v + i), i <= 4",
                    {"density": 0.001, "layers": "per-tensor"}),
        Composition("adacomp", "residual", "bins", "sign", "gather",
                    "Chen et al., AdaComp, AAAI 2018", "(p-1) k (1/8 + i), k as many as pass, i <= 4",
                    {"layers": "per-tensor"}),
        Composition("gaussiank", "residual", "gaussian", "float", "gather",
                    "Shi et al., Understanding top-k sparsification, 2019",
                    "(p-1) k (v + i), k up to 4/3 of the target, i <= 4"),
        Composition("sidco", "residual", "sidco", "float", "gather",
                    "Abdelmoniem et al., SIDCo, MLSys 2021", "(p-1) k (v + i), k 0.8 to 1.2 of the target, i <= 4"),
        Composition("accordion", "residual", "top-k", "float", "gather",
                    "Agarwal et al., ACCORDION, MLSys 2021", "(p-1) k (v + i), k as the regime wants, i <= 4",
                    {"layers": "per-tensor"}, "accordion"),
        Composition("gtopk", "residual", "top-k", "float", "merge",
                    "Shi et al., gTop-k, ICDCS 2019", "2 (p-1)/p k (v + i), on rank 0 ceil(log2 p) k (v + i)"),
        Composition("oktopk", "residual", "top-k", "float", "balanced",
                    "Li and Hoefler, Ok-Topk, PPoPP 2022", "about 2 (p-1)/p k (v + i), at most 3 (p-1)/p k (v + i)"),
        Composition("arctopk", "residual", "rows", "float", "agreed",
                    "ARC-Top-k, 2025", "2 (p-1)/p (k + n width/row) v"),
        Composition("powersgd", "residual", "all", "float", "low-rank",
                    "Vogels et al., PowerSGD, NeurIPS 2019",
                    "2 (p-1)/p r (rows + columns) v of each matrix, 2 (p-1)/p v of an element of a vector"),
        Composition("sketchsgd", "residual", "top-k", "float", "sketch",
                    "Ivkin et al., SketchedSGD, NeurIPS 2019", "2 (p-1)/p (rows columns + factor k) v",
                    {"density": 0.001}),
        Composition("onebit", "residual", "all", "one-bit", "pieces",
                    "Seide et al., Interspeech 2014", "2 (p-1)/p (n/8 + 2 v columns)"),
        Composition("signsgd", "residual", "all", "sign", "gather",
                    "Karimireddy et al., ICML 2019", "(p-1) (n/8 + v arrays)"),
        Composition("qsgd", "none", "all", "levels", "gather",
                    "Alistarh et al., NeurIPS 2017", "(p-1) (n/8 width + v n/bucket), width 2, 4, 8 or 16"),
        Composition("terngrad", "none", "all", "ternary", "gather",
                    "Wen et al., NeurIPS 2017", "(p-1) (n/4 + v arrays)"),
        Composition("stochastic-rounding", "none", "all", "stochastic", "pieces",
                    "Sahu et al., NeurIPS 2021; Gupta et al. 2015", "2 (p-1)/p n times 1, 2 or v, as values need",
                    {"second": "no"}, with_memory={"second": "yes"}),
        Composition("natural", "none", "all", "natural", "pieces",
                    "Horvath et al., MSML 2022", "2 (p-1) (n/p + 4)", {"second": "no"}, with_memory={"second": "yes"}),
        *(Composition(name, "none", "all", "blocks", "pieces",
                      "Wang et al., ZeRO++, ICLR 2024; EQuARX, 2025", f"2 (p-1)/p n ({share} + 1/64)",
                      {"format": name, "second": "no"}, with_memory={"second": "yes"})
          for name, share in (("int8", "1"), ("int4", "1/2"), ("fp8", "1"))),
        Composition("scaled-integer", "none", "all", "scaled-integer", "dense",
                    "Sapio et al., SwitchML, NSDI 2021", "2 (p-1)/p n bits/8"),
        Composition("error-reset", "error-reset", "random-k", "float", "agreed",
                    "Xie et al., CSER, NeurIPS 2020", "2 (p-1)/p k v"),
        Composition("induced", "none", "all", "induced", "gather",
                    "Horvath and Richtarik, ICLR 2021",
                    "(p-1) (k (v + i) + n/8 width + v n/bucket), i <= 4"),
        Composition("auto", "residual", "all", "float", "fastest",
                    "Tyagi and Swany, GraVAC, IEEE CLOUD 2023", "as the candidate that runs"),
        Composition("localsgd", "error-reset", "all", "float", "dense",
                    "Stich, Local SGD, ICLR 2019", "2 (p-1)/p n v once a period", {"between": "nothing"}),
    )
}

# Classes of users' own join these; register_part checks them against the protocols.
PARTS: dict[str, dict[str, Any]] = {"memory": MEMORIES, "selector": SELECTORS, "codec": CODECS,
                                    "exchange": EXCHANGES, "schedule": SCHEDULES}


class Classes(NamedTuple):
    """The classes of a scheme's parts."""

    memory: type[Memory]
    selector: type[Selector]
    codec: type[Codec]
    exchange: type[AnyExchange]
    schedule: type[DensitySchedule]


AnyPart = TypeVar("AnyPart", bound=Part)
OWN = ("selector", "codec", "exchange")  # parts that candidates of one scheme do not share

COMMON = (
    Option("layers", str, "whole", "select in the whole model, or in each array by itself",
           choices=("whole", "per-tensor")),
    Option("dense", str, "none", "arrays that go uncompressed: by place, dimension, name (norm, bn, bias)",
           words=DENSE_RULES),
    Option("nodes", str, "auto", "compress slices of the nodes' means instead of every rank's vector; auto: if it can",
           choices=("auto", "yes", "no")),
    Option("seed", int, 0, "of the random numbers of stochastic parts", low=0),
)


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
            raise InvalidArgument(f"unknown scheme {self.name!r}{did_you_mean(self.name, names())}; "
                                  f"the schemes are: {', '.join(names())}")
        own = self._composition.defaults
        classes = _classes(self._composition, {**own, **self.given})
        if classes.memory.remembers:
            own = {**own, **self._composition.with_memory}
        declared = _declared(classes)
        known = {option.name for option in declared}  # another part in the place of the scheme's has other options
        chosen = {**{name: value for name, value in own.items() if name in known}, **self.given}
        object.__setattr__(self, "options", resolve(declared, chosen, f"scheme {self.name}"))
        # As resolved: schemes are equal however a number was written.
        object.__setattr__(self, "given", {name: self.options[name] for name in self.given})
        check_fit(classes.selector, classes.codec, classes.exchange)
        check_threshold(classes.codec, classes.selector, self.options.get("lam"))
        check_nodes(self.options)
        self.parts(workers=1)  # a part may refuse a combination that each option alone allows

    @classmethod
    def parse(cls, text: str | Scheme) -> Scheme:
        """The scheme that ``name:option=value,...`` stands for.

        Raises
        ------
        InvalidArgument
            For an unknown scheme or option (with the choices) or a value out of range.

        Examples
        --------
        >>> scheme = Scheme.parse("topk:density=1e-2,codec=levels")
        >>> print(scheme)
        topk:density=0.01,codec=levels
        >>> scheme.options["beta"], scheme.part_names["exchange"]
        (1.0, 'gather')
        >>> Scheme.parse("topk:density=2")
        Traceback (most recent call last):
        ...
        mpicomp.errors.InvalidArgument: density must be in (0, 1], got 2
        """
        if isinstance(text, Scheme):
            return text
        if not isinstance(text, str):
            raise InvalidArgument(f"a scheme is a text such as 'topk:density=0.01', or a Scheme, got {text!r}")
        return cls(*written(text))

    def replace(self, **options: Any) -> Scheme:
        """The same scheme with ``options`` given instead."""
        return Scheme(self.name, {**self.given, **options})

    def equals(self, text: str) -> bool:
        """True if ``text`` stands for the same, in whatever order and whether or not defaults are written.

        ``nodes`` may differ: it is about who keeps what, which a state says by itself.
        """
        other = Scheme.parse(text)
        return (self.name, {**self.options, "nodes": ""}) == (other.name, {**other.options, "nodes": ""})

    def __str__(self) -> str:
        shown = ",".join(f"{name}={self.options[name]}" for name in self.given)
        return f"{self.name}:{shown}" if shown else self.name

    def __hash__(self) -> int:
        return hash((self.name, frozenset(self.given.items())))

    def parts(self, workers: int) -> Parts:
        """Fresh parts for a reducer with ``workers`` workers on this rank."""
        classes, make = self._classes, self._make
        parts = Parts([make(classes.memory) for _ in range(workers)], make(classes.selector), make(classes.codec),
                      make(classes.exchange), make(classes.schedule))
        if self.chooses:
            parts.exchange.candidates = [self._candidate(text, parts) for text in self.options["candidates"].split("+")]
            check_candidates(parts)
        return parts

    def _candidate(self, text: str, own: Parts) -> Candidate:
        """The parts of a candidate that are its own, written NAME/OPTION=VALUE/...; all others are this scheme's."""
        scheme = Scheme.parse(text.replace("/", ":", 1).replace("/", ","))
        classes = scheme._classes
        free = {option.name for kind in OWN for option in getattr(classes, kind).options}
        shared = sorted(set(scheme.given) - free - set(OWN) - {"memory"})
        parts = scheme.parts(1)
        check_candidate(text, parts, own, shared, (scheme.options["layers"], self.options["layers"]))
        plain_feedback = own.memories[0].name == "residual" and own.memories[0].beta == 1
        keeps = parts.memories[0].remembers or not parts.selector.selects_all or not plain_feedback
        return Candidate(text, parts.selector, parts.codec, parts.exchange, keeps)

    def warning_texts(self) -> list[str]:
        """Warnings about rarely wanted behaviour, a sentence each; a new Reducer prints them once."""
        return list(warning_texts(self.parts(1)))

    def adam_warning_texts(self) -> list[str]:
        """Warnings about the scheme under Adam, a sentence each, with what to take instead."""
        return list(adam_warning_texts(self.parts(1), self.options["layers"]))

    @property
    def rate_factor(self) -> float:
        """Factor that the scheme proposes for the learning rate of Adam: 1 / sqrt(density), at most 3.

        It is 1 for schemes that send all coordinates, and with memories that make the difference themselves. It is
        never applied on its own.

        >>> Scheme.parse("topk:density=0.25").rate_factor
        2.0
        """
        return rate_factor(self.parts(1))

    @property
    def part_names(self) -> dict[str, str]:
        """The declared name of each part: memory, selector, codec, exchange, schedule."""
        return {kind: part.name for kind, part in self.part_classes.items()}

    @property
    def part_classes(self) -> dict[str, type[Part]]:
        """The class of each part."""
        return self._classes._asdict()

    def describe(self) -> dict[str, Any]:
        """A row of `table` for this scheme, with the ``value`` of every option.

        ``wire`` is None if a part other than the scheme's own is in use: the formula is for the scheme's own parts.
        """
        row, classes = _row(self._composition), self.part_classes
        own = all(classes[kind].name == row[kind] for kind in PARTS)
        replaced = [part.reference for kind, part in classes.items() if part.name != row[kind] and part.reference]
        options = [{**_described(option, self._composition.defaults), "value": self.options[option.name]}
                   for option in _declared(self._classes)]
        return {**row, "name": str(self), **self.part_names, "options": options, "wire": row["wire"] if own else None,
                "rate_factor": self.rate_factor, "reference": "; ".join([row["reference"], *replaced])}

    @property
    def slices(self) -> bool:
        """True if ranks compress slices of their nodes' means, where a node has several ranks.

        With ``nodes=auto`` a scheme does unless it selects in, or clips, a worker's whole vector. One whose exchange is
        a dense all-reduce leaves nodes to that.

        >>> [Scheme.parse(text).slices for text in ("topk", "topk:k=3", "dense", "dense:nodes=yes")]
        [True, False, False, True]
        """
        asked: str = self.options["nodes"]
        if asked == "auto":
            return self.part_names["exchange"] != "dense" and whole_vectors(self.options) is None
        return asked == "yes"

    @property
    def takes_momentum(self) -> bool:
        """True if each worker applies the momentum before compression: the optimizer must then have none."""
        return self._classes.memory.takes_momentum

    @property
    def chooses(self) -> bool:
        """True if each step's selector, codec and exchange are one of several candidates': results follow the clock."""
        return self._classes.exchange.chooses

    @property
    def diverges(self) -> bool:
        """True if each rank gets a result of its own, as with error reset and local SGD, and so has its own model."""
        return self._classes.memory.diverges

    @property
    def _classes(self) -> Classes:
        return _classes(self._composition, self.options)

    @property
    def _composition(self) -> Composition:
        return COMPOSITIONS[self.name]

    def _make(self, part: type[AnyPart]) -> AnyPart:
        make = cast(Callable[..., AnyPart], part)
        return make(**{option.name: self.options[option.name] for option in part.options})


def names() -> list[str]:
    """The names of all schemes."""
    return list(COMPOSITIONS)


def table() -> list[dict[str, Any]]:
    """One row a scheme: its parts, options (default, range, meaning), wire cost and reference."""
    return [_row(line) for line in COMPOSITIONS.values()]


def common_options() -> list[dict[str, Any]]:
    """Options of every scheme, whatever its parts: default, range, meaning."""
    return [_described(option, {}) for option in (*SCHEDULES["warm-up"].options, *COMMON, *_replacements())]


def _row(line: Composition) -> dict[str, Any]:
    return {
        "name": line.name, **{kind: getattr(line, kind) for kind in PARTS},
        "options": [_described(option, line.defaults) for option in _declared(_classes(line, {}))],
        "wire": line.wire, "reference": line.reference,
    }


def _described(option: Option, defaults: dict[str, Any]) -> dict[str, Any]:
    default = defaults.get(option.name, option.default)
    return {"name": option.name, "default": default, "range": option.range, "meaning": option.meaning}


def _classes(line: Composition, options: Mapping[str, Any]) -> Classes:
    """The classes of a composition's parts, with those that options put in their place, where these exist."""
    return Classes(**{
        kind: registry.get(options.get(kind) or "", registry[getattr(line, kind)])
        for kind, registry in PARTS.items()
    })  # fmt: skip


def _declared(classes: Classes) -> list[Option]:
    """Every option of the parts, each once, and those all schemes have.

    Raises
    ------
    InvalidArgument
        Two parts have options of one name whose ranges differ, or a part has one that all schemes have: each would
        get the other's values.
    """
    everywhere = [*COMMON, *_replacements()]
    common, own = {option.name for option in everywhere}, dict[str, Option]()
    for part in classes:
        for option in part.options:
            known = own.setdefault(option.name, option)
            if option.agrees(known):
                own[option.name] = option
            if option.name in common or not (option.agrees(known) or known.agrees(option)):
                raise InvalidArgument(f"option {option.name!r} of {part.name} has another range than that of the "
                                      "scheme's other parts, or of all schemes: give it a name of its own")
    return [*own.values(), *everywhere]


def _replacements() -> list[Option]:
    """The options that put another part in a part's place; registries may grow (registration.py)."""
    return [Option(kind, str, None, f"another {kind} than the scheme's own", choices=tuple(registry))
            for kind, registry in PARTS.items()]
