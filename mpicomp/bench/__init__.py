"""The bench: implementations of a collective, timed against each other and checked against the exact result.

``run`` measures a ``Plan``; how rows are printed is the command's business. A new collective is one module with a
function ``implementations(comm, plan, n)``, and one entry in ``collectives.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .collectives import COLLECTIVES
from .plan import Plan

__all__ = ["COLLECTIVES", "Plan", "run"]


def run(comm: Any, plan: Plan, progress: Callable[..., None] = lambda text, done=0.0: None
        ) -> Iterator[list[dict[str, Any]]]:  # fmt: skip
    """Measure ``plan`` size by size (collective); yields the rows of each size, the same on every rank.

    Parameters
    ----------
    comm : mpicomp.Comm
    plan : Plan
    progress : callable
        Called with a line of text, and the share of the sizes that is done, when something new begins.
    """
    from .measure import measure  # NumPy and the library: not for --help

    return measure(comm, plan, progress)
