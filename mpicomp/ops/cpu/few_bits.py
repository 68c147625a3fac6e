"""Operations on few bits per value, made of compiled ones; see :mod:`.oracle.quantise`."""

from __future__ import annotations

import math

import numpy as np

from .. import _cpu
from ..arguments import HEAD, NOT_FINITE, Key, require_norm


def group_norms(x: np.ndarray, bounds: np.ndarray, kind: str, out: np.ndarray) -> None:
    """One number a group: ``"l2"``, ``"capped"``, ``"max"`` or ``"mean"``."""
    require_norm(kind)
    _cpu.group_norms_of(x, bounds, "l2" if kind == "capped" else kind, out)
    if kind == "capped":
        np.minimum(out, np.finfo(out.dtype).max, out=out)


def limit_norms(x: np.ndarray, bounds: np.ndarray, factor: float, out: np.ndarray) -> None:
    """Each group's ``out`` becomes ``factor`` times the root mean square of its entries, if that is smaller."""
    norms = np.empty_like(out)
    _cpu.group_norms_of(x, bounds, "l2", norms)
    limits = factor * norms.astype(np.float64) / np.sqrt(np.maximum(1, np.diff(bounds)))
    with np.errstate(over="ignore"):
        np.minimum(out, limits.astype(out.dtype), out=out)


def encode_natural(x: np.ndarray, bounds: np.ndarray, first: int, key: Key, message: np.ndarray) -> None:
    """A ``message`` of bytes: the exponent of the largest power of two, then a byte per value."""
    largest, codes = np.empty(1, x.dtype), message[HEAD.itemsize :]
    _cpu.group_norms_of(x, bounds, "max", largest)
    message[: HEAD.itemsize].view(HEAD)[0] = top = _top_of(float(largest[0]), x.dtype)
    if top == NOT_FINITE:
        codes[:] = 0
    else:
        limit = x.dtype.type(2.0**top)
        _cpu.pack_natural(np.clip(x, -limit, limit) if largest[0] > limit else x, top, first, key, codes)


def _top_of(largest: float, dtype: np.dtype) -> int:
    """The exponent of the least power of two that is not below ``largest``, within what a byte's code allows.

    2^(top - 126) .. 2^top must be normal numbers of ``dtype``.
    """
    if not math.isfinite(largest):
        return NOT_FINITE
    highest = int(np.finfo(dtype).maxexp) - 1
    mantissa, exponent = math.frexp(largest)  # largest = mantissa 2^exponent, mantissa 0 or in [0.5, 1)
    return min(highest, max(127 - highest, exponent - (mantissa == 0.5)))
