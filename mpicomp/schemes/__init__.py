"""Schemes: named compositions of memory, selector, codec, exchange and density schedule.

The parts are in `memories`, `selectors`, `codecs`, `exchanges` and `schedules`; `registry` names their compositions.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .options import Option
    from .registry import COMPOSITIONS, PARTS, Composition, Scheme, common_options, names, table

# Loaded on first use: the help of the command line must not import NumPy.
_HOME = {
    "COMPOSITIONS": ".registry", "PARTS": ".registry", "Composition": ".registry", "Scheme": ".registry",
    "common_options": ".registry", "names": ".registry", "table": ".registry", "Option": ".options",
}  # fmt: skip

__all__ = ["COMPOSITIONS", "PARTS", "Composition", "Option", "Scheme", "common_options", "names", "table"]

if not TYPE_CHECKING:  # otherwise type checkers accept every misspelt name

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(import_module(_HOME[name], __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
