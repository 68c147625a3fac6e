"""The trivial selector: every coordinate."""

from __future__ import annotations

from ...types import Array
from ..interfaces import Selector, StepContext
from ..values import Compensated


class All(Selector):
    """Selects everything: its selection is None, and no index is written."""

    name = "all"
    options = ()
    reference = "-"
    finds_nonfinite = True
    selects_all = True

    def select(self, u: Compensated, ctx: StepContext) -> None:
        return None

    def expand(self, wire: Array, ctx: StepContext) -> Array:
        return wire
