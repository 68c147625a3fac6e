"""The trivial selector: every coordinate."""

from __future__ import annotations

from typing import Any

from ..values import Array, Compensated


class All:
    """Selects everything; an exchange that sends whole vectors asks for no indices."""

    name = "all"
    options = ()
    reference = "-"

    def select(self, u: Compensated, spans: list[tuple[int, int]], ops: Any) -> Array:
        return ops.arange(u.n)

    def expand(self, wire: Array, n: int, spans: list[tuple[int, int]], ops: Any) -> Array:
        return wire

    def wire_like(self, n: int, spans: list[tuple[int, int]], ops: Any) -> Array | None:
        return ops.arange(n)
