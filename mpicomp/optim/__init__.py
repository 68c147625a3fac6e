"""Optimizers (`optimizers`) and learning rates (`rates`) for NumPy and CuPy arrays; no framework needed."""

from .optimizers import LAMB, LARS, OPTIMIZERS, SAM, SGD, Adam, Optimizer, make, norm

__all__ = ["LAMB", "LARS", "OPTIMIZERS", "SAM", "SGD", "Adam", "Optimizer", "make", "norm"]
