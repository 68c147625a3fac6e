"""Options of schemes, optimizers and rates: declared once beside what they steer, read and checked alike everywhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from .._util.suggestions import did_you_mean
from ..errors import InvalidArgument

_KINDS = {int: "a whole number", float: "a number", str: "a text"}
BELOW = 2**63  # of whole numbers: what arrays count with

DENSE_RULES = ("first", "last", "1d", "norm")  # arrays that go uncompressed: place, dimension, name


@dataclass(frozen=True)
class Option:
    """One option of a part, its type, default, range and meaning.

    ``low`` and ``high`` bound numbers (``open_low``: the bound itself is refused); ``choices`` bounds words;
    of ``words`` several may be given, joined by ``+``, or ``none``.
    ``default`` None means that the option is not set.

    Examples
    --------
    >>> chunk = Option("chunk", int, 112, "elements a chunk", low=1, high=65536)
    >>> chunk.range, chunk.parse("64")
    ('in [1, 65536]', 64)
    >>> chunk.parse("0")
    Traceback (most recent call last):
    ...
    mpicomp.errors.InvalidArgument: chunk must be in [1, 65536], got 0
    """

    name: str
    type: type
    default: Any
    meaning: str
    low: float | None = None
    high: float | None = None
    open_low: bool = False
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a declaration whose values cannot be written, or would be read as something else."""
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise InvalidArgument(f"the name of an option must be one of a Python argument, got {self.name!r}")
        if self.type not in _KINDS:  # bool("no") is True
            raise InvalidArgument(f"option {self.name}: type must be int, float or str, got {self.type!r}; for a "
                                  "switch take str with choices=('yes', 'no')")
        listed = (*self.choices, *self.words)
        if listed and not (self.type is str and all(isinstance(text, str) for text in listed)):
            raise InvalidArgument(f"option {self.name}: choices and words must be texts, of an option of type str, got "
                                  f"{', '.join(map(repr, listed))} and type {self.type.__name__}")
        if self.default is not None and self.parse(self.default) != self.default:
            raise InvalidArgument(f"option {self.name}: the default must be {_KINDS[self.type]} or None, got "
                                  f"{self.default!r}")

    @property
    def range(self) -> str:
        """The allowed values, as errors and tables show them."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.words:
            return "none, or some of " + "+".join(self.words)
        if self.low is None:
            return f"any {self.type.__name__}" if self.high is None else f"at most {self.high:g}"
        bracket = "(" if self.open_low else "["
        return f"in {bracket}{self.low:g}, {'inf)' if self.high is None else f'{self.high:g}]'}"

    def agrees(self, other: Option) -> bool:
        """Return True if both can have one value: another of this name, whose choices this one may narrow."""
        mine, theirs = ((one.type, one.low, one.high, one.open_low, one.words) for one in (self, other))
        return mine == theirs and set(self.choices) <= set(other.choices)

    def parse(self, text: Any) -> Any:
        """The value that ``text`` (or a value of another type) stands for."""
        try:
            value = self.type(text)
            if self.type is int and isinstance(text, float) and value != text:
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise InvalidArgument(f"{self.name} must be {_KINDS[self.type]} {self.range}, got {text!r}") from None
        if self.type is int and value >= BELOW:
            raise InvalidArgument(f"{self.name} must be below 2^63, got {text}")
        if not self._allows(value):
            raise InvalidArgument(f"{self.name} must be {self.range}, got {text}")
        return value

    def _allows(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if self.words:
            return value == "none" or set(value.split("+")) <= set(self.words)
        if self.type is float and not isfinite(value):
            return False
        if self.low is not None and not (value > self.low if self.open_low else value >= self.low):
            return False
        return self.high is None or value <= self.high


# Of Adam: declared by optimizers and by the memory adam-update.
BETAS = (
    Option("beta1", float, 0.9, "decay of the first moment", low=0, high=0.999999),
    Option("beta2", float, 0.999, "decay of the second moment", low=0, high=0.999999),
    Option("eps", float, 1e-8, "added to the root of the second moment", low=0, open_low=True),
)

# Declared by selectors and by codecs, which do not know each other.
DENSITY = Option("density", float, 0.01, "fraction of the elements sent", low=0, high=1, open_low=True)
K = Option("k", int, None, "elements sent, instead of a density", low=1)
LAM = Option("lam", float, None, "smallest magnitude sent, on the gradient's scale; else from k or density",
             low=0, open_low=True)


def resolve(options: Iterable[Option], given: dict[str, Any], owner: str) -> dict[str, Any]:
    """Every option's value: the one given, checked, or the default.

    Raises
    ------
    InvalidArgument
        For an unknown option (the text lists those there are) or a value out of range.
    """
    declared = {option.name: option for option in options}
    for name in given:
        if name not in declared:
            choices = ", ".join(sorted(declared)) or "none"
            raise InvalidArgument(f"{owner} has no option {name!r}{did_you_mean(name, declared)}; "
                                  f"its options are: {choices}")
    return {
        name: option.parse(given[name]) if name in given else option.default
        for name, option in declared.items()
    }


def written(text: str) -> tuple[str, dict[str, str]]:
    """``name:option=value,...`` as the name and the options.

    Raises
    ------
    InvalidArgument
        For an option without a value, and one that is given twice.
    """
    name, _, rest = text.partition(":")
    given: dict[str, str] = {}
    for item in filter(None, (piece.strip() for piece in rest.split(","))):
        option, equals, value = (side.strip() for side in item.partition("="))
        if not equals or not value:
            raise InvalidArgument(f"options are written name=value, got {item!r} in {text!r}")
        if option in given:
            raise InvalidArgument(f"option {option!r} is given twice in {text!r}")
        given[option] = value
    return name.strip(), given
