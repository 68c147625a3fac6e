"""Rank-local work whose errors are raised on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, overload

from ...errors import InvalidArgument

R = TypeVar("R")


class Agrees(Protocol):
    """The verb of a communicator that ``run_collectively`` needs."""

    def fail_together(self, error: Exception | None) -> None: ...


def check_communicator(comm: object) -> None:
    """Refuse what does not have that verb, such as a communicator of mpi4py; local."""
    if not hasattr(comm, "fail_together"):  # steps ask: a runtime-checkable protocol takes microseconds
        raise InvalidArgument(f"comm must be a mpicomp.Comm, got {type(comm).__name__}: "
                              "make one by mpicomp.Comm(MPI.COMM_WORLD), and pass it instead")


@overload
def run_collectively(comm: Agrees, work: Callable[[], R]) -> R: ...
@overload
def run_collectively(comm: Agrees, work: Callable[[], R], here: bool) -> R | None: ...
def run_collectively(comm: Agrees, work: Callable[[], R], here: bool = True) -> R | None:
    """Run rank-local work; if any rank fails, raise its error on every rank (collective).

    Parameters
    ----------
    comm : mpicomp.Comm
        All ranks of it call this function, also those that do not run ``work``.
    work : callable
        Local: it may fail on one rank and not on another, so it must not wait for other ranks.
    here : bool
        This rank runs ``work``: for example ``comm.rank == 0``.

    Returns
    -------
    object
        The result of ``work()`` on the ranks that ran it; None on the others.

    Raises
    ------
    Exception
        On every rank the error of the lowest rank that failed: see `mpicomp.Comm.fail_together`.
    """
    check_communicator(comm)
    result: R | None = None
    error: Exception | None = None
    if here:
        try:
            result = work()
        except Exception as caught:  # of any class: the other ranks wait for the verdict below
            error = caught
    comm.fail_together(error)
    return result
