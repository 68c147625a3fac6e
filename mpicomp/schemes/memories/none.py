"""The trivial memory."""

from __future__ import annotations

from collections.abc import Iterator

from ...ops.protocol import Ops
from ...types import Array
from ..interfaces import Memory, StepContext
from ..values import Compensated, Sent


class NoMemory(Memory):
    """Keeps nothing: elements that are not sent are lost."""

    name = "none"
    options = ()
    reference = "-"
    remembers = False

    def compensate(self, gradient: Array, ctx: StepContext) -> Compensated:
        return Compensated(None, gradient)

    def update(self, u: Compensated, sent: Sent, ctx: StepContext) -> Iterator[None]:
        """Nothing is kept."""
        return iter(())

    def squared_norm(self, ops: Ops) -> float:
        return 0.0
