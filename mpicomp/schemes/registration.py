"""Parts and schemes of your own, chosen by name like those of this library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any, TypeVar, cast

from ..errors import InvalidArgument
from . import registry as schemes
from .compatibility import SELECTORS
from .interfaces import AgreedSelector, Codec, DensitySchedule, Exchange, Memory, Selector
from .options import Option
from .stateful import Stateful

Class = TypeVar("Class", bound=type)

PROTOCOLS: dict[str, type] = {"memory": Memory, "selector": Selector, "codec": Codec, "exchange": Exchange,
                              "schedule": DensitySchedule}
CODECS = ("any", "addable", "float")  # that an exchange may allow
# How a checkpoint may give a part's state to other ranks (checkpoint/redistribute.py).
RULES = {"memory": ("add", "stay"), "others": ("same", "anew", "stay")}
# Traits of a class that has a verb of its own, unless it declares them: verb -> trait.
TRAITS = {"wire_like": "broadcasts", "counts": "counted", "threshold": "has_threshold", "set_shift": "takes_shift"}


def register_part(kind: str) -> Callable[[Class], Class]:
    """Decorator: make a class choosable as a part of schemes, by its ``name``; on every rank.

    Parameters
    ----------
    kind : {"memory", "selector", "codec", "exchange", "schedule"}

    Raises
    ------
    InvalidArgument
        If the kind is unknown, the name is taken, or the class lacks something that all parts of the kind have.

    Examples
    --------
    A codec that sends float64 rounded to whole numbers:

    >>> import mpicomp
    >>> from mpicomp.schemes.codecs import CODECS
    >>> @mpicomp.register_part("codec")
    ... class Whole(CODECS["float"]):
    ...     name, options = "whole", ()
    ...     def __init__(self):
    ...         super().__init__(values="float64")
    ...     def encode(self, values, place, step):
    ...         return super().encode(values.round(), place, step)
    >>> print(mpicomp.Scheme.parse("topk:codec=whole,density=0.5"))
    topk:codec=whole,density=0.5
    >>> mpicomp.register_scheme(mpicomp.schemes.Composition(
    ...     "whole-topk", "residual", "top-k", "whole", "gather", reference="an example", wire="(p-1) k (8 + i)"))
    >>> "whole-topk" in mpicomp.schemes.names()
    True
    """
    if not isinstance(kind, str) or kind not in schemes.PARTS:
        raise InvalidArgument(f"kind must be one of {', '.join(schemes.PARTS)}, got {kind!r}")

    def register(part: Class) -> Class:
        if not isinstance(part, type):
            raise InvalidArgument(f"register_part goes before a class, got {part!r}")
        protocol = PROTOCOLS[kind]
        if protocol is Selector and getattr(part, "sketch", Selector.sketch) is not Selector.sketch:
            protocol = AgreedSelector
        if missing := list(_missing(part, protocol)):
            raise InvalidArgument(f"a {kind} needs what {protocol.__module__}.{protocol.__name__} declares; "
                                  f"{part.__name__} has no {', '.join(missing)}")
        whole = part if protocol in part.__mro__ else _with_defaults(part, protocol)
        declared: Any = whole  # it has what is needed
        if _origin(whole, "stateful") is Stateful is not _origin(whole, "state"):
            declared.stateful = True
        if not isinstance(declared.options, tuple | list) or not all(
                isinstance(option, Option) for option in declared.options):
            raise InvalidArgument(f"options of {part.__name__} must be a tuple of mpicomp.schemes.options.Option")
        _check_words(kind, declared)
        _add(schemes.PARTS[kind], declared.name, whole, kind)
        return whole

    return register


def _origin(part: type, name: str) -> Any:
    """The class whose attribute of a name a part has: itself or one that it inherits from; None if it has none."""
    return next((base for base in part.__mro__ if name in vars(base)), None)


def _check_words(kind: str, part: Any) -> None:
    """Refuse words of a part's attributes that have no meaning, which would be taken for another one."""
    words = [("takes", part.takes, SELECTORS), ("codecs", part.codecs, CODECS)] if kind == "exchange" else []
    origin = _origin(part, "redistribution")
    if origin is not None and not origin.__module__.startswith("mpicomp."):
        words += [(f"redistribution of {name}", rule, RULES["memory" if kind == "memory" else "others"])
                  for name, rule in origin.redistribution]
    for what, word, allowed in words:
        if word not in allowed:
            raise InvalidArgument(f"{part.__name__}: {what} must be one of {', '.join(allowed)}, got {word!r}")


def _missing(part: type, protocol: type) -> Iterator[str]:
    """Attributes and verbs without a default that a class lacks; verbs with their arguments."""
    required = [name for name in ("name", "options", "reference", "takes", "codecs")
                if any(name in vars(base).get("__annotations__", ()) for base in protocol.__mro__)]
    yield from (name for name in required if not hasattr(part, name))
    for name in vars(protocol):  # in the order of the protocol
        if name in _abstract(protocol) and (not hasattr(part, name) or name in _abstract(part)):
            arguments = list(signature(getattr(protocol, name)).parameters)[1:]
            yield f"{name}({', '.join(arguments)})"


def _abstract(part: type) -> frozenset[str]:
    """Verbs that a class inherits from a protocol without a body of its own."""
    return getattr(part, "__abstractmethods__", frozenset())


def _with_defaults(part: Class, protocol: type) -> Class:
    """A class of one's own with a protocol's defaults behind it, and the traits that follow from its verbs."""
    traits = {trait: True for verb, trait in TRAITS.items() if hasattr(part, verb) and not hasattr(part, trait)}
    about = {name: getattr(part, name) for name in ("__module__", "__qualname__", "__doc__")}
    return cast(Class, type(part.__name__, (part, protocol), {**about, **traits}))


def register_scheme(composition: schemes.Composition) -> None:
    """Give a composition of parts a name, on every rank: ``Reducer(comm, "the-name")``.

    Raises
    ------
    InvalidArgument
        The name is taken, a part is unknown, or the parts do not fit together; nothing is registered then.
    """
    if not isinstance(composition, schemes.Composition):
        raise InvalidArgument(f"register_scheme takes a mpicomp.schemes.Composition, got {composition!r}")
    for kind, registry in schemes.PARTS.items():
        if getattr(composition, kind) not in tuple(registry):
            raise InvalidArgument(f"scheme {composition.name}: {kind} must be one of {', '.join(registry)}, "
                                  f"got {getattr(composition, kind)!r}")
    _add(schemes.COMPOSITIONS, composition.name, composition, "scheme")
    try:
        # given, so that misspelt ones are refused
        schemes.Scheme(composition.name, {**composition.defaults, **composition.with_memory})
        schemes.Scheme(composition.name)
    except Exception:  # also of a part that cannot be made
        del schemes.COMPOSITIONS[composition.name]
        raise


def _add(registry: dict[str, Any], name: str, thing: object, what: str) -> None:
    if not isinstance(name, str) or not name.isprintable() or not name or set(name) & set(":,=+/ "):
        raise InvalidArgument(f"the name of a {what} must be a text without blanks, ':', ',', '=', '+' and '/', got "
                              f"{name!r}")
    if name in registry:
        raise InvalidArgument(f"there is a {what} named {name!r} already: choose another name")
    registry[name] = thing
