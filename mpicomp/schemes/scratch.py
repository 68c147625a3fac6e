"""Arrays and values that a step leaves for the next ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

import numpy as np

from ..ops.protocol import Ops
from ..types import Array

Value = TypeVar("Value")


class Scratch:
    """Working memory of a reducer, and what it derived from its layout and from the lists of the current step.

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
        self._of_lists: dict[Hashable, tuple[Array, object]] = {}

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

    def of_list(self, key: Hashable, indices: Array, make: Callable[[], Value]) -> Value:
        """The result of the step's last ``make()`` under ``key``, if it was for this very list; else of a new one."""
        held, made = self._of_lists.get(key, (None, None))
        if held is not indices:
            made = make()
            self._of_lists[key] = indices, made
        return cast(Value, made)

    def begin_step(self) -> None:
        """Forget the lists of the last step."""
        self._of_lists.clear()
