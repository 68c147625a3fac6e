"""The trivial memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...types import Array, Compensated, Sent


class NoMemory:
    """Keeps nothing: what is not sent is lost."""

    name = "none"
    options = ()
    reference = "-"
    remembers = False
    silences = False

    def silent(self, number: int) -> bool:
        return False

    def compensate(self, gradient: Array, step: Any) -> Compensated:
        return Compensated(None, gradient)

    def update(self, u: Compensated, sent: Sent, step: Any) -> Iterator[None]:
        """Nothing is kept."""
        return iter(())

    def local(self, u: Compensated, sent: Sent, step: Any) -> None:
        return None

    def squared_norm(self, ops: Any) -> float:
        return 0.0

    def check(self, n: int) -> None:
        """Any size will do."""

    def state(self, ops: Any) -> dict[str, np.ndarray]:
        return {}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Nothing to load."""
