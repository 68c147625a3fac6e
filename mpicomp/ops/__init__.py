"""Array primitives: one module a device, the same names in each. ``ops_for`` is the one place that looks."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType
from typing import Any

from ..errors import InvalidArgument

__all__ = ["knows", "ops_for", "register"]

_CPU = ".oracle" if os.environ.get("MPICOMP_OPS") == "reference" else ".cpu"
_HOMES: dict[str, str | ModuleType] = {"numpy": _CPU, "cupy": ".gpu"}  # by the root of the array type's module
_FOUND: dict[type, ModuleType] = {}  # by array type: what makes ops_for cheap enough for every call


def ops_for(array: Any) -> ModuleType:
    """The primitives for the device ``array`` lives on: :mod:`.cpu` for NumPy, :mod:`.gpu` for CuPy.

    ``MPICOMP_OPS=reference`` in the environment puts the NumPy oracle in the place of the compiled module.
    """
    return _FOUND.get(type(array)) or _find(type(array))


def knows(array: Any) -> bool:
    """Whether there are primitives for arrays of this type."""
    return type(array) in _FOUND or _home(type(array)) is not None


def register(type_root: str, module: ModuleType) -> None:
    """Let arrays whose type's module begins with ``type_root`` be served by ``module``."""
    _HOMES[type_root] = module
    _FOUND.clear()


def _find(array_type: type) -> ModuleType:
    home = _home(array_type)
    if home is None:
        raise InvalidArgument(
            f"expected an array of one of {', '.join(_HOMES)}, got {array_type.__module__}.{array_type.__qualname__}"
        )
    module = import_module(home, __name__) if isinstance(home, str) else home
    return _FOUND.setdefault(array_type, module)


def _home(array_type: type) -> str | ModuleType | None:
    for base in array_type.__mro__:
        if base.__name__ == "ndarray" or base is array_type:
            home = _HOMES.get(base.__module__.partition(".")[0])
            if home is not None:
                return home
    return None
