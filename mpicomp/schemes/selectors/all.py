"""The trivial selector: every coordinate."""

from __future__ import annotations

from typing import Any

from ...types import Compensated


class All:
    """Selects everything: its selection is None, and no index is written."""

    name = "all"
    options = ()
    reference = "-"
    finds_nonfinite = True

    def select(self, u: Compensated, step: Any) -> None:
        return None

    def expand(self, wire: None, step: Any) -> None:
        return None
