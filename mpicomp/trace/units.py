"""Times, sizes and the course of a value as people read them."""

from __future__ import annotations

from collections.abc import Iterable

_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 20


def duration(ns: float) -> str:
    """A time with four digits and a unit that suits it.

    >>> duration(1_234_567), duration(850)
    ('1.235 ms', '850 ns')
    """
    for scale, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(ns) >= scale:
            return f"{ns / scale:.4g} {unit}"
    return f"{ns:.0f} ns"


def nbytes(number: float) -> str:
    """A size in decimal units, as bandwidths are."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= scale:
            return f"{number / scale:.4g} {unit}"
    return f"{number:.0f} B" if number else "-"


def sparkline(values: Iterable[float | None]) -> str:
    """The course of a metric in a few characters; a blank where it is not finite."""
    values = list(values)
    width = min(_SPARK_WIDTH, len(values))
    picked = [values[index * (len(values) - 1) // max(1, width - 1)] for index in range(width)]
    finite = [value for value in picked if value is not None]
    if not finite:
        return ""
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    return "".join(" " if value is None else _BLOCKS[round((value - low) / span * 7)] for value in picked)
