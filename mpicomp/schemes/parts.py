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
