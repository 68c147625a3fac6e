"""Partitions of n elements into contiguous parts: counts and displacements in elements; runs of numbers."""

from __future__ import annotations

from collections.abc import Iterator


def partition(n: int, size: int) -> tuple[list[int], list[int]]:
    """Cut ``n`` elements into ``size`` contiguous parts that differ by at most one element.

    Returns
    -------
    counts, displs : list of int
        Elements in each part (longer parts first) and the offset of each part.

    Examples
    --------
    >>> partition(10, 3)
    ([4, 3, 3], [0, 4, 7])
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    quotient, remainder = divmod(n, size)
    counts = [quotient + (part < remainder) for part in range(size)]
    displs = [part * quotient + min(part, remainder) for part in range(size)]
    return counts, displs


def offset(n: int, size: int, part: int) -> int:
    """Offset of part ``part`` of ``partition(n, size)``; ``n`` for part ``size``."""
    quotient, remainder = divmod(n, size)
    return part * quotient + min(part, remainder)


def pieces(start: int, stop: int, length: int) -> Iterator[tuple[int, int]]:
    """Cut ``[start, stop)`` into pieces of ``length`` elements; the last may be shorter."""
    for begin in range(start, stop, length):
        yield begin, min(begin + length, stop)


def chunk_count(n: int, chunk: int) -> int:
    """Number of chunks of ``chunk`` elements that cover ``n`` elements."""
    return -(-n // chunk)


def runs(numbers: list[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers: ``[0, 1, 2, 5]`` has (0, 2) and (5, 5)."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        first = found.pop()[0] if found and number == found[-1][1] + 1 else number
        found.append((first, number))
    return found
