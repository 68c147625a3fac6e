"""The bench: implementations of a collective, timed against each other and checked against the exact result.

``run`` measures a ``Plan``; the command prints the rows. A new collective is one class in ``dense.py`` and one entry
in ``collectives.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .._util.progress import Progress, silent
from .collectives import COLLECTIVES
from .plan import Plan

if TYPE_CHECKING:
    from ..comm.comm import Comm
    from .schema import Row

__all__ = ["COLLECTIVES", "Plan", "run"]


def run(comm: Comm, plan: Plan, progress: Progress = silent) -> Iterator[list[Row]]:
    """Measure ``plan`` size by size (collective); yields the rows of each size, the same on every rank.

    Parameters
    ----------
    comm : mpicomp.Comm
    plan : Plan
    progress : callable
        Called with a line of text, and the completed share of the sizes, when something new begins.
    """
    from .measure import measure  # imports NumPy and MPI: not for --help

    return measure(comm, plan, progress)
