"""Groups of ranks that do the same: guessed by their numbers, and checked on a sample."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from .comm import Script

SAMPLE = 8  # ranks looked at to see whether all are alike, beside those at the ends and in the middle
MANY = 4096  # ranks, above which one that sends to each other takes seconds to look at: fewer are
OF_A_BRANCH = 3  # and of each place in a tree

Record = Callable[[int], Script]


def sample(size: int) -> list[int]:
    """Ranks to look at, beside rank 0, to see whether all are alike."""
    drawn = np.random.default_rng(size).integers(1, size, SAMPLE if size <= MANY else 1).tolist()
    ends = {1, size // 2, size - 1} if size > MANY else {1, 2, size // 2, size - 2, size - 1}
    return sorted({*ends, *drawn})


def scripts(record: Record, size: int, own: Iterable[int], unlike: Callable[[Sequence[int]], None] = lambda ranks: None
            ) -> tuple[Record, str | None]:
    """The script of every rank, and how they were found; None where each has to be recorded.

    Ranks ``own`` do something of their own. The others are taken to do the same, or the same as those in their place in
    a binomial tree with rank 0 at its root. ``unlike(ranks)``, given two of these, may refuse before many are recorded.
    """
    known = {rank: record(rank) for rank in own}
    others = [rank for rank in range(size) if rank not in known]
    looked_at = [rank for rank in sample(size) if rank not in known]
    all_alike = one_script(record, looked_at)
    if all_alike is not None:
        how = f"rank 0 and {len(looked_at)} others, which were found alike"
        return (lambda rank: known.get(rank) or all_alike), how
    unlike([looked_at[0], looked_at[-1]])
    branches = defaultdict(list)
    for rank in others:
        branches[branch(rank, size)].append(rank)
    by_branch = {}
    for place, ranks in branches.items():
        found = one_script(record, sorted({ranks[0], ranks[len(ranks) // 2], ranks[-1]}))
        if found is None:
            return (lambda rank: known.get(rank) or record(rank)), None
        by_branch[place] = found
    how = f"up to {OF_A_BRANCH} ranks in each of {len(branches)} places of a binomial tree, which were found alike"
    return (lambda rank: known.get(rank) or by_branch[branch(rank, size)]), how


def one_script(record: Record, ranks: Sequence[int]) -> Script | None:
    """Return the script that all of these ranks share; None if they differ."""
    first = record(ranks[0])
    return first if all(record(rank) == first for rank in ranks[1:]) else None


def branch(rank: int, size: int) -> tuple[int, int]:
    """Return the depth of a rank's tree below rank 0's, and its number of children: the last tree may lack some."""
    below = (rank & -rank).bit_length() - 1
    return below, min(below, (size - 1 - rank).bit_length())
