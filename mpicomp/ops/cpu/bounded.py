"""Error-bounded codes by compiled passes; see :mod:`..oracle.bounded`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .. import _cpu
from ..error_bound import (
    grid_of,
    largest_integer,
    refused_stream,
    refused_sum,
    require_divisor,
    require_room,
    require_streams,
)


def encode_bounded(x: np.ndarray, bound: float, terms: int, codes: np.ndarray) -> tuple[int, int]:
    grid = grid_of(bound)
    largest = largest_integer(x.dtype, terms, grid)
    require_room(codes, x.size, x.dtype)
    return _cpu.encode_on_grid(x, *grid, largest, codes)


def sum_bounded(streams: list[np.ndarray], n: int, dtype: npt.DTypeLike, bound: float,
                codes: np.ndarray) -> tuple[int, int]:
    require_streams(streams, n, dtype)
    require_room(codes, n, dtype)
    valid, fits, nbytes, escaped = _cpu.sum_on_grid(streams, n, np.dtype(dtype) == np.float64, grid_of(bound).step,
                                                    codes)
    if not valid:
        raise refused_stream(n, dtype)
    if not fits:
        raise refused_sum()
    return nbytes, escaped


def decode_bounded(codes: np.ndarray, bound: float, divisor: int, out: np.ndarray) -> None:
    require_divisor(divisor)
    if not _cpu.decode_on_grid(codes, grid_of(bound).step, divisor, out):
        raise refused_stream(out.size, out.dtype)
