"""Operations on few bits a value that the compiled ones do not have as they are; see :mod:`.oracle.quantise`."""

from __future__ import annotations

import numpy as np

from .. import _cpu
from ..oracle import Key
from ..oracle.quantise import cap, decode_natural_by, encode_natural_by, limit, require_norm


def group_norms(x: np.ndarray, bounds: np.ndarray, kind: str, out: np.ndarray) -> None:
    """One number a group: ``"l2"``, ``"capped"``, ``"max"`` or ``"mean"``."""
    require_norm(kind)
    _cpu.group_norms(x, bounds, "l2" if kind == "capped" else kind, out)
    if kind == "capped":
        cap(out)


def limit_norms(x: np.ndarray, bounds: np.ndarray, factor: float, out: np.ndarray) -> None:
    """Each group's ``out`` becomes ``factor`` times the root mean square of its entries, where that is smaller."""
    norms = np.empty_like(out)
    _cpu.group_norms(x, bounds, "l2", norms)
    limit(norms, bounds, factor, out)


def unpack_signs(packed: np.ndarray, bounds: np.ndarray, negative: np.ndarray | None, positive: np.ndarray,
                 out: np.ndarray) -> None:
    """Each entry becomes its group's ``positive`` where its bit is 1, else its ``negative`` (None: minus the other)."""
    _cpu.unpack_signs(packed, bounds, -positive if negative is None else negative, positive, out)


def quantise(x: np.ndarray, unit: float, first: int, key: Key | None, codes: np.ndarray,
             largest: float | None = None) -> None:
    """``codes`` = floor(x * (1/unit) + uniform), or to nearest; what does not fit is looked for on the way."""
    _cpu.quantise(x, unit, first, key, codes)


def encode_natural(x: np.ndarray, bounds: np.ndarray, first: int, key: Key, message: np.ndarray) -> None:
    """A ``message`` of bytes: the exponent of the largest power of two, then a byte a value."""
    encode_natural_by(_cpu.group_norms, _cpu.pack_natural, x, bounds, first, key, message)


def decode_natural(message: np.ndarray, out: np.ndarray, known: bool = False) -> None:
    """What ``encode_natural``'s message stands for, NaN where values were not finite; refuses any other head."""
    decode_natural_by(_cpu.unpack_natural, message, out)
