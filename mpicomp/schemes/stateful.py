"""State of a part that lasts from step to step."""

from __future__ import annotations

from typing import Protocol

from ..ops.protocol import Ops
from .values import Span, State


class Stateful(Protocol):
    """A part with state, which by default keeps nothing from step to step."""

    stateful: bool = False  #: Something is kept from step to step.
    required_state: tuple[str, ...] = ()  #: Names that a state of any step but the first must have.
    #: How a checkpoint gives the state to another number of ranks, by name and rule (checkpoint/redistribute.py).
    redistribution: tuple[tuple[str, str], ...] = ()

    def state(self, ops: Ops) -> State:
        """NumPy copies of all that later steps depend on; the same names on every rank, if need be of empty arrays."""
        return {}

    def load(self, state: State) -> None:
        """Go on from a state."""
        return

    def set_aside(self, spans: list[Span]) -> None:
        """Empty what is kept of some spans of the vector, until ``put_back``."""
        return

    def put_back(self, ops: Ops) -> None:
        """Fill the spans again with what was set aside."""
        return
