"""Arrays and values that a step leaves for the next ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

import numpy as np

from ..ops.protocol import Ops
from ..types import Array

Value = TypeVar("Value")


class Scratch:
    """Working memory of a reducer, and what it derived from its layout.

    Parameters
    ----------
    ops : Ops
        The operations of the device that the arrays are on.
    like : Scratch, optional
        Another rank's, in simulations: what follows from the layout is worked out once for all ranks.
    """

    def __init__(self, ops: Ops, like: Scratch | None = None) -> None:
        self.ops = ops
        self._arrays: dict[str, Array] = {}
        self._once: dict[Hashable, object] = {} if like is None else like._once

    def array(self, key: str, n: int, dtype: np.dtype) -> Array:
        """An array of ``n`` elements kept from step to step under ``key``; its contents are not defined."""
        array = self._arrays.get(key)
        if array is None or array.size != n or array.dtype != dtype:
            array = self._arrays[key] = self.ops.empty(n, dtype)
        return array

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The result of the first ``make()`` under ``key``; for values that depend on the layout alone."""
        if key not in self._once:
            self._once[key] = make()
        return cast(Value, self._once[key])
