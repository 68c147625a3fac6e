"""Suggest the known name nearest to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A parenthesis for an error message, behind ``word``; empty if no known name is near.

    >>> did_you_mean("scalcom", ["dense", "scalecom"])
    " (did you mean 'scalecom'?)"
    >>> did_you_mean("xyz", ["dense", "scalecom"])
    ''
    """
    near = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""
