"""Numbers with their nouns."""

from __future__ import annotations


def count(n: int, noun: str, plural: str = "s") -> str:
    """A number and its noun.

    >>> count(1, "process", "es"), count(2, "process", "es")
    ('1 process', '2 processes')
    """
    return f"{n} {noun}{'' if n == 1 else plural}"
