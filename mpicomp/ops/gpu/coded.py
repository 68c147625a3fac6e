"""Coded values; see :mod:`..oracle.quantise`. A GPU decodes them before it uses them."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import cast

import numpy as np

from ..arguments import Coded
from ..coded import Needed, Reading, coded_mean_by, coded_update_by
from . import block_codes, quantise
from .base import add, empty, scale
from .cuda_runtime import Array
from .selection import dense_update

_OPS = cast(Needed, SimpleNamespace(empty=empty, add=add, scale=scale, dense_update=dense_update))


def coded(operation: str, arguments: dict[str, object], n: int, dtype: np.dtype) -> Coded:
    home = block_codes if operation == "decode_blocks" else quantise
    return Reading(getattr(home, operation), arguments, n, dtype)


def coded_mean(coded: Iterable[Array | Coded], factor: float, plus: Array | None, out: Array) -> None:
    coded_mean_by(_OPS, coded, factor, plus, out)


def coded_update(memory: Array, grad: Array, sent: Array | Coded, first: int, beta: float) -> None:
    coded_update_by(_OPS, memory, grad, sent, first, beta)
