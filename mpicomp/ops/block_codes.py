"""Sizes and error bounds of block codes, shared by all array modules; :mod:`.oracle.block_codes` defines the codes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._util.partition import chunk_count
from ..errors import InvalidArgument
from .arguments import Array

BLOCK = 256  # elements that share a scale
FORMATS = ("int8", "int4", "fp8")
SCALE_BYTES = 4  # before the codes of a block
LARGEST = {"int8": 127, "int4": 7, "fp8": 448}  # magnitude of a code
HALF_STEP = {"int8": 1 / 254, "int4": 1 / 14, "fp8": 1 / 28}  # largest rounding error, as a share of the largest value
ROUNDING = {4: 2.0**-22, 8: 2.0**-51}  # of scaling and of the result, likewise, by bytes per element


def block_codes_nbytes(n: int, format: str) -> int:
    """Bytes of the codes of ``n`` elements."""
    require_format(format)
    if n < 0:
        raise InvalidArgument(f"n must be at least 0, got {n}")
    return chunk_count(n, BLOCK) * SCALE_BYTES + (chunk_count(n, 2) if format == "int4" else n)


def largest_error(largest: npt.ArrayLike, format: str, dtype: npt.DTypeLike, stochastic: bool = False) -> np.ndarray:
    """Largest error of an element whose block has this ``largest`` finite magnitude, in float64.

    Twice the half step if rounding is ``stochastic``. Below the smallest normal number the scale does not shrink.
    """
    require_format(format)
    kind, share = np.finfo(dtype), HALF_STEP[format] * (2 if stochastic else 1)
    size = np.maximum(np.asarray(largest, np.float64), float(kind.tiny) * LARGEST[format])
    return size * (share + ROUNDING[np.dtype(dtype).itemsize])


def require_format(format: str) -> None:
    """Refuse unknown formats."""
    if format not in FORMATS:
        raise InvalidArgument(f"format must be one of {', '.join(FORMATS)}, got {format!r}")


def require_codes_of(x: Array, format: str, codes: Array) -> None:
    """Refuse values that are not real numbers, and codes that are not as long as theirs."""
    if x.dtype not in (np.float32, np.float64):
        raise InvalidArgument(f"values must be of dtype float32 or float64, got {x.dtype}")
    if codes.dtype != np.uint8 or codes.size != (nbytes := block_codes_nbytes(x.size, format)):
        raise InvalidArgument(f"codes must have {nbytes} elements of uint8 for {x.size} values of {format}, "
                              f"got {codes.size} of {codes.dtype}")
