"""Hard threshold."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidArgument
from ..options import Option
from ..values import Array, Compensated
from ._by_span import select_by_span


class Threshold:
    """Every element with |u| >= lam, ascending. Element-wise, so layers and whole model give the same.

    Reference: Sahu et al., NeurIPS 2021: it minimises the total error of the whole training under a budget.
    """

    name = "threshold"
    options = (Option("lam", float, None, "smallest magnitude sent, on the gradient's scale", low=0, open_low=True),)
    reference = "Sahu et al. 2021"

    def __init__(self, lam: float | None) -> None:
        if lam is None:
            raise InvalidArgument("threshold needs lam, the smallest magnitude sent: for example threshold:lam=0.01")
        self.lam = lam

    def select(self, u: Compensated, spans: list[tuple[int, int]], ops: Any) -> Array:
        return select_by_span(u, [(0, u.n)], ops, lambda m, g: ops.threshold(m, g, self.lam))

    def expand(self, wire: Array, n: int, spans: list[tuple[int, int]], ops: Any) -> Array:
        return wire

    def wire_like(self, n: int, spans: list[tuple[int, int]], ops: Any) -> None:
        """How many pass is known only after selecting."""
        return
