"""Parts and schemes of your own, chosen by name like those of this library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import InvalidArgument
from . import registry as schemes
from .options import Option

Part = TypeVar("Part", bound=type)

# What the class of every part of a kind has. What some instances set by themselves is in the packages' __init__.py.
NEEDED = {
    "memory": ("remembers", "silent", "compensate", "update", "local", "squared_norm"),
    "selector": (),  # two sorts, see below
    "codec": ("addable", "shares_scale", "may_overflow", "encode", "decode"),
    "exchange": ("takes", "codecs", "early", "select", "compress", "exchange", "state", "load"),
    "schedule": ("density", "observe", "learning_rate_dropped", "state", "load"),
}
EACH_BY_ITSELF, AGREED = ("finds_nonfinite", "select", "expand"), ("sketch", "pick")


def register_part(kind: str) -> Callable[[Part], Part]:
    """Decorate a class to make it a part of schemes, chosen by its ``name``. Apply it on every rank.

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
    if kind not in schemes.PARTS:
        raise InvalidArgument(f"kind must be one of {', '.join(schemes.PARTS)}, got {kind!r}")

    def register(part: Part) -> Part:
        wanted = ("name", "options", "reference", *_verbs(kind, part))
        missing = [name for name in wanted if not hasattr(part, name)]
        if missing:
            raise InvalidArgument(f"a {kind} needs {', '.join(wanted)}; {part.__name__} has no {', '.join(missing)}")
        declared: Any = part  # it has what is wanted
        if not all(isinstance(option, Option) for option in declared.options):
            raise InvalidArgument(f"options of {part.__name__} must be a tuple of mpicomp.schemes.options.Option")
        _add(schemes.PARTS[kind], declared.name, part, kind)
        return part

    return register


def register_scheme(composition: schemes.Composition) -> None:
    """Give a composition of parts a name, on every rank: ``Reducer(comm, "the-name")``.

    Raises
    ------
    InvalidArgument
        The name is taken, a part is unknown, or the parts do not fit together; nothing is registered then.
    """
    for kind, registry in schemes.PARTS.items():
        if getattr(composition, kind) not in registry:
            raise InvalidArgument(f"scheme {composition.name}: {kind} must be one of {', '.join(registry)}, "
                                  f"got {getattr(composition, kind)!r}")
    _add(schemes.COMPOSITIONS, composition.name, composition, "scheme")
    try:
        schemes.Scheme(composition.name)
    except Exception:  # also of a part that cannot be made
        del schemes.COMPOSITIONS[composition.name]
        raise


def _verbs(kind: str, part: type) -> tuple[str, ...]:
    if kind == "selector":
        return AGREED if hasattr(part, "sketch") else EACH_BY_ITSELF
    return NEEDED[kind]


def _add(registry: dict[str, Any], name: str, thing: object, what: str) -> None:
    if not name or set(name) & set(":,= "):
        raise InvalidArgument(f"the name of a {what} must hold none of ':', ',', '=' and blanks, got {name!r}")
    if name in registry:
        raise InvalidArgument(f"there is a {what} named {name!r} already: choose another name")
    registry[name] = thing
