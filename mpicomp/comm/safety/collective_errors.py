"""Work that may fail on some ranks: what it raises there is raised on all, and none waits for the others in vain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def together(comm: Any, work: Callable[[], Any], here: bool = True) -> Any:
    """Do ``work()`` on the ranks that give ``here=True`` (collective).

    Parameters
    ----------
    comm : mpicomp.Comm
        All ranks of it call this, whether they work or not.
    work : callable
        Local: it may fail on one rank and not on another, so it must not wait for other ranks.
    here : bool
        Such as ``comm.rank == 0``.

    Returns
    -------
    object
        What ``work()`` gave, on the ranks that did it; None on the others.

    Raises
    ------
    Exception
        On every rank the error of the lowest rank that failed, whatever it is: see `mpicomp.Comm.fail_together`.
    """
    result = error = None
    if here:
        try:
            result = work()
        except Exception as caught:  # also a mistake of ours: the other ranks wait for the verdict below
            error = caught
    comm.fail_together(error)
    return result
