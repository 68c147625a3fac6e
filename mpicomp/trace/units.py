"""Text forms of times, sizes, numbers, ranks and courses of values; "-" stands for an unknown value."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .._util.partition import runs

_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 20


def digits(value: float, least: int = 4) -> str:
    """A number in at least ``least`` digits; a large one in full, not as a power of ten.

    >>> digits(1.23456), digits(12345.6), digits(9999.6), digits(1234.5, 3)
    ('1.235', '12346', '10000', '1234')
    """
    return f"{value:.{least}g}" if abs(value) < 10**least - 0.5 else f"{value:.0f}"


def duration(ns: float) -> str:
    """A time with four digits and a suitable unit.

    >>> duration(1_234_567), duration(850), duration(4e13)
    ('1.235 ms', '850 ns', '40000 s')
    """
    for scale, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(ns) >= scale:
            return f"{digits(ns / scale)} {unit}"
    return f"{ns:.0f} ns"


def nbytes(number: float) -> str:
    """A size in decimal units, as bandwidths are."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= scale:
            return f"{digits(number / scale)} {unit}"
    return f"{number:.0f} B" if number and is_known(number) else "-"


def is_known(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def time_of(ns: float) -> str:
    return duration(ns) if is_known(ns) else "-"


def percent(share: float | None) -> str:
    return f"{share:.1%}" if is_known(share) else "-"


def number(value: float | None, digits: int = 4) -> str:
    return f"{value:.{digits}g}" if is_known(value) else "-"


def ranges(numbers: list[int]) -> str:
    """Ascending numbers as ranges.

    >>> ranges([0, 1, 2, 5])
    '0-2,5'
    """
    return ",".join(f"{first}-{last}" if first < last else str(first) for first, last in runs(numbers))


def some_ranges(numbers: list[int], most: int = 16) -> str:
    """`ranges`, shortened to the first ``most`` numbers and the count of the others."""
    if len(ranges(numbers).split(",")) <= most:
        return ranges(numbers)
    return f"{ranges(numbers[:most])} and {len(numbers) - most} more"


def sparkline(values: Iterable[float | None]) -> str:
    """The course of a metric in a few characters; a blank for a value that is not finite."""
    values = list(values)
    width = min(_SPARK_WIDTH, len(values))
    picked = [values[index * (len(values) - 1) // max(1, width - 1)] for index in range(width)]
    halves = [value / 2 if value is not None and math.isfinite(value) else None for value in picked]
    finite = [value for value in halves if value is not None]
    if not finite:
        return ""
    low, span = min(finite), (max(finite) - min(finite)) or 1.0  # of halves: the span of wholes may be infinite
    return "".join(" " if value is None else _BLOCKS[round((value - low) / span * 7)] for value in halves)
