"""Array primitives: one module per device, all with the operations of `protocol.Ops`. `ops_for` chooses the module."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType
from typing import cast

from ..errors import InvalidArgument
from .protocol import Ops

__all__ = ["Ops", "knows", "ops_for", "register"]

_CPU = ".oracle" if os.environ.get("MPICOMP_OPS") == "reference" else ".cpu"
_HOMES: dict[str, str | ModuleType] = {"numpy": _CPU, "cupy": ".gpu"}  # by the root of the array type's module
_FOUND: dict[type, Ops] = {}  # by array type: makes ops_for cheap enough for every call


def ops_for(array: object) -> Ops:
    """Return the operations for the device of ``array``: :mod:`.cpu` for NumPy, :mod:`.gpu` for CuPy.

    If the environment has ``MPICOMP_OPS=reference``, the NumPy oracle replaces the compiled module.
    """
    return _FOUND.get(type(array)) or _find(type(array))


def knows(array: object) -> bool:
    """Return True if there are operations for arrays of this type."""
    return type(array) in _FOUND or _home(type(array)) is not None


def register(type_root: str, module: ModuleType) -> None:
    """Serve arrays whose type's module begins with ``type_root`` by ``module``."""
    _HOMES[type_root] = module
    _FOUND.clear()


def _find(array_type: type) -> Ops:
    home = _home(array_type)
    if home is None:
        raise InvalidArgument(
            f"expected an array of one of {', '.join(_HOMES)}, got {array_type.__module__}.{array_type.__qualname__}"
        )
    module = import_module(home, __name__) if isinstance(home, str) else home
    return _FOUND.setdefault(array_type, cast(Ops, module))


def _home(array_type: type) -> str | ModuleType | None:
    for base in array_type.__mro__:
        if base.__name__ == "ndarray" or base is array_type:
            home = _HOMES.get(base.__module__.partition(".")[0])
            if home is not None:
                return home
    return None
