"""Arrays and values that a step leaves for the next ones."""

from __future__ import annotations

import numpy as np

from ..ops.protocol import Ops
from ..types import Array
from .values import Once


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
        self.once: Once = Once() if like is None else like.once  # results that depend on the layout alone

    def array(self, key: str, n: int, dtype: np.dtype) -> Array:
        """An array of ``n`` elements kept from step to step under ``key``; its contents are not defined."""
        array = self._arrays.get(key)
        if array is None or array.size != n or array.dtype != dtype:
            array = self._arrays[key] = self.ops.empty(n, dtype)
        return array
