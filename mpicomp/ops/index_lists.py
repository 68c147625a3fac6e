"""Selected indices in parts: which of a list lie in which span."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy.typing as npt

from .arguments import Array


class Part(NamedTuple):
    """The part of a list of selected indices that lies in one span."""

    indices: Array
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def parts_of(indices: Array, spans: Iterable[int], counts: list[int]) -> dict[int, Part]:
    """By span, a list that holds ``counts`` indices of each."""
    bounds = pairwise([0, *accumulate(counts)])
    return {span: Part(indices, *bound) for span, bound in zip(spans, bounds, strict=True)}


def joined(parts: Iterable[Part], concatenate: Callable[[list[Array], npt.DTypeLike], Array],
           dtype: npt.DTypeLike) -> Array:
    """All, of ascending spans, in one list of ``dtype``; neighbours in a list stay together."""
    runs: list[Part] = []
    for part in parts:
        if runs and runs[-1].indices is part.indices and runs[-1].end == part.begin:
            runs[-1] = runs[-1]._replace(end=part.end)
        elif part.size or not runs:
            runs.append(part)
    if len(runs) == 1:
        only = runs[0]
        return only.indices if only.size == only.indices.size else only.indices[only.begin : only.end]
    return concatenate([one.indices[one.begin : one.end] for one in runs], dtype)
