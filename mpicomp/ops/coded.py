"""Values that an operation reads from codes once they are used: for GPUs, and for ghosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgument
from .arguments import Array, Coded


@dataclass
class Reading:
    """The ``size`` values that ``read(**arguments, out=out)`` writes; kept once they were asked for."""

    read: Callable[..., None]
    arguments: dict[str, object]
    size: int
    dtype: np.dtype
    values: Array | None = None


class Needed(Protocol):
    """The operations that these are made of."""

    def empty(self, n: int, dtype: npt.DTypeLike) -> Array: ...
    def add(self, dst: Array, src: Array) -> None: ...
    def scale(self, x: Array, factor: float) -> None: ...
    def dense_update(self, memory: Array, grad: Array, sent: Array, beta: float) -> None: ...


def coded_mean_by(ops: Needed, coded: Iterable[Array | Coded], factor: float, plus: Array | None, out: Array) -> None:
    out[:] = 0
    for one in coded:
        ops.add(out, _decoded(ops, one))
    ops.scale(out, factor)
    if plus is not None:
        ops.add(out, plus)


def coded_update_by(ops: Needed, memory: Array, grad: Array, sent: Array | Coded, first: int, beta: float) -> None:
    if first % 8:
        raise InvalidArgument(f"first must be a multiple of 8, got {first}")
    ops.dense_update(memory, grad, _decoded(ops, sent)[first : first + grad.size], beta)


def _decoded(ops: Needed, one: Array | Coded) -> Array:
    if not isinstance(one, Reading):
        return cast(Array, one)
    if one.values is None:
        one.values = ops.empty(one.size, one.dtype)
        one.read(**one.arguments, out=one.values)
    return one.values
