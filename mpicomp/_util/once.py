"""Results that are worked out once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Value = TypeVar("Value")


class Once:
    """Results of functions by key, each worked out at its first use."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Any] = {}

    def __call__(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The result of the first ``make()`` under ``key``."""
        try:
            found: Value = self._found[key]
        except KeyError:
            found = self._found[key] = make()
        return found
