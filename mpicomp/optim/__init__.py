"""Optimizers (`optimizers`, `communicating`) and learning rates (`rates`) for NumPy and CuPy arrays; no framework.

`DiLoCo` averages how far workers went, every so many steps of their own optimizers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .optimizers import LAMB, LARS, OPTIMIZERS, SAM, SGD, Adam, Optimizer, make, norm

if TYPE_CHECKING:
    from .communicating import COMMUNICATING, OneBitAdam, ZeroOneAdam
    from .diloco import DiLoCo

__all__ = ["COMMUNICATING", "LAMB", "LARS", "OPTIMIZERS", "SAM", "SGD", "Adam", "DiLoCo", "OneBitAdam", "Optimizer",
           "ZeroOneAdam", "make", "norm"]  # fmt: skip

if not TYPE_CHECKING:  # those that communicate start MPI

    def __getattr__(name: str) -> Any:
        if name in __all__:
            return getattr(import_module(".diloco" if name == "DiLoCo" else ".communicating", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
