"""Assignment of virtual workers to ranks; no list of ranks if all hold equally many."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from ..comm.interfaces import Communicator


class Workers:
    """The workers of all ranks, numbered rank by rank.

    Parameters
    ----------
    ends : sequence of int
        Of every rank, the number after that of its last worker: a range where all ranks hold as many.
    """

    def __init__(self, ends: Sequence[int]) -> None:
        self._ends, self.total = ends, ends[-1]
        # Workers of the rank that holds most.
        self.most = ends.step if isinstance(ends, range) else max(map(self.on, range(len(ends))))

    @classmethod
    def equal(cls, each: int, size: int) -> Workers:
        """``each`` on every one of ``size`` ranks."""
        return cls(range(each, each * size + 1, each))

    @classmethod
    def of_all(cls, comm: Communicator, mine: int) -> Workers:
        """Asked of all ranks (collective): in O(log size) messages, unless they hold different numbers."""
        least, most = comm.extremes(mine)
        if least == most:
            return cls.equal(mine, comm.size)
        flat, _ = comm.gather_to_all(np.array([mine], np.int64), [1] * comm.size)
        return cls(np.cumsum(flat).tolist())

    def first(self, rank: int) -> int:
        """The number of a rank's first worker."""
        return self._ends[rank - 1] if rank else 0

    def on(self, rank: int) -> int:
        """Number of a rank's workers."""
        return self._ends[rank] - self.first(rank)

    def owner(self, worker: int) -> tuple[int, int]:
        """The rank that holds a worker, and the worker's place there."""
        rank = bisect_right(self._ends, worker)
        return rank, worker - self.first(rank)
