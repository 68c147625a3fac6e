"""Optimizers (`optimizers`) and learning rates (`rates`) for NumPy and CuPy arrays; no framework needed.

`DiLoCo` averages how far workers went, every so many steps of their own optimizers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .optimizers import LAMB, LARS, OPTIMIZERS, SAM, SGD, Adam, Optimizer, make, norm

if TYPE_CHECKING:
    from .diloco import DiLoCo

__all__ = ["LAMB", "LARS", "OPTIMIZERS", "SAM", "SGD", "Adam", "DiLoCo", "Optimizer", "make", "norm"]

if not TYPE_CHECKING:  # the other optimizers start no MPI

    def __getattr__(name: str) -> Any:
        if name == "DiLoCo":
            from .diloco import DiLoCo

            return DiLoCo
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
