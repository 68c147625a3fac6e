"""Launchers of block codes, a warp per block; see :mod:`..oracle.block_codes`."""

from __future__ import annotations

import numpy as np

from ..arguments import Key
from ..block_codes import BLOCK, block_codes_nbytes
from .arguments import check, kind_of
from .cuda_runtime import REAL, THREADS, WARP, Array, blocks_for, launch, on_device
from .random import stream

FORMAT = {"int8": "Int8", "int4": "Int4", "fp8": "Fp8"}


@on_device
def encode_blocks(x: Array, format: str, codes: Array, key: Key | None = None, first: int = 0) -> None:
    t, stochastic, numbers = kind_of(x, "x", REAL), np.int32(key is not None), stream(first, key or Key(0, 0, 0))
    check(codes, "codes", np.uint8, block_codes_nbytes(x.size, format))
    name, arguments = f"encode_blocks<{t}, {FORMAT[format]}>", (np.int64(x.size), stochastic, *numbers, codes)
    launch("block_codes", name, _grid(x.size), x, *arguments)


@on_device
def decode_blocks(codes: Array, format: str, out: Array) -> None:
    t = kind_of(out, "out", REAL)
    check(codes, "codes", np.uint8, block_codes_nbytes(out.size, format))
    launch("block_codes", f"decode_blocks<{t}, {FORMAT[format]}>", _grid(out.size), codes, np.int64(out.size), out)


def _grid(n: int) -> int:
    return blocks_for(-(-n // BLOCK), THREADS // WARP)
