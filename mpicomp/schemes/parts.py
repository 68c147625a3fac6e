"""The parts of a scheme, made for one reducer."""

from __future__ import annotations

from typing import NamedTuple

from .interfaces import AnyExchange, Codec, DensitySchedule, Memory, Selector


class Parts(NamedTuple):
    """One of each kind, and a memory for each of the reducer's workers."""

    memories: list[Memory]
    selector: Selector
    codec: Codec
    exchange: AnyExchange
    schedule: DensitySchedule

    @property
    def redistribution(self) -> dict[tuple[str, str], str]:
        """The rules of entries of a saved state, by kind of part and name (checkpoint/redistribute.py)."""
        parts = (("memory", self.memories[0]), ("exchange", self.exchange), ("schedule", self.schedule))
        return {(kind, name): rule for kind, part in parts for name, rule in part.redistribution}
