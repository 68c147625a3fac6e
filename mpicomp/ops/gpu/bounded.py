"""Error-bounded codes of device arrays, made in host memory; see :mod:`..oracle.bounded`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .. import cpu
from .arguments import check, kind_of
from .base import from_host
from .cuda_runtime import REAL, Array, on_device, to_host


@on_device
def encode_bounded(x: Array, bound: float, terms: int, codes: Array) -> tuple[int, int]:
    kind_of(x, "x", REAL)
    check(codes, "codes", np.uint8)
    made = np.empty(codes.size, np.uint8)
    nbytes, escaped = cpu.encode_bounded(to_host(x), bound, terms, made)
    codes[:nbytes] = from_host(made[:nbytes])
    return nbytes, escaped


@on_device
def sum_bounded(streams: list[Array], n: int, dtype: npt.DTypeLike, bound: float, codes: Array) -> tuple[int, int]:
    for stream in streams:
        check(stream, "streams", np.uint8)
    check(codes, "codes", np.uint8)
    made = np.empty(codes.size, np.uint8)
    nbytes, escaped = cpu.sum_bounded([to_host(stream) for stream in streams], n, dtype, bound, made)
    codes[:nbytes] = from_host(made[:nbytes])
    return nbytes, escaped


@on_device
def decode_bounded(codes: Array, bound: float, divisor: int, out: Array) -> None:
    kind_of(out, "out", REAL)
    check(codes, "codes", np.uint8)
    made = np.empty(out.size, out.dtype)
    cpu.decode_bounded(to_host(codes), bound, divisor, made)
    out[:] = from_host(made)
