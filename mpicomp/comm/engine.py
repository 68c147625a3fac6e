"""Private side of one communicator: its link, checks, call log, reductions and all-reduces in flight."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from ..ops.node_shared import PlainCalls
from .allgather import gather_to_all
from .interfaces import Traffic
from .levels import NodeLevels
from .nonblocking import Helper, Twin, threads_allowed
from .reduction import Reduction
from .safety.agreement import Agreement
from .safety.call_log import CallLog
from .safety.checks import Checks
from .safety.revocation import announce
from .safety.watchdog import log_for, log_wanted
from .settings import Settings
from .transport import MpiLink

native_allreduce: Callable[..., None] = MPI.Intracomm.Allreduce
NO_PLAIN_CALLS = PlainCalls(native_allreduce, MPI.IN_PLACE)  # before there is an engine: lets no call pass


class Engine:
    """Private side of the communicator ``comm``; making it is collective.

    Attributes
    ----------
    link : MpiLink
        Messages between the ranks, on a duplicate of ``comm``.
    log : CallLog or None
        None if neither a timeout nor fault injection is configured.
    plain : PlainCalls
        The short path of small all-reduces; counts the calls.
    default : str
        The algorithm that ``auto`` means.
    reduction : Reduction
        Runs dense schedules.
    checks : Checks
        Compares calls over the ranks.
    helper : Helper or None
        Runs all-reduces in flight, after the first.
    levels : NodeLevels or None
        After the first use of ``Comm.levels``, if there are two.
    """

    def __init__(self, comm: MPI.Intracomm, settings: Settings) -> None:
        self.settings = settings
        private = announce(MPI.Intracomm(comm).Dup())
        self.plain = plain = PlainCalls(native_allreduce, MPI.IN_PLACE, private.Get_size(), log_wanted())
        self.log, self._watched = log_for(private, plain)
        self.link = link = MpiLink(private, settings, self.log, self._leave)
        self.reduction = Reduction(link)
        self.default = settings.algorithm
        if self.default == "auto" and not link.reproducible and (self.log is None or self.log.plain_calls):
            # an array of so many bytes is never too long for one call of MPI
            plain.limit = min(link.rows["cpu"].native_limit(), link.max_count)
        agreement = Agreement(link.rank, link.extremes, self._gather_texts)
        self.checks = Checks(agreement, plain, self.log, settings.check, link.size)
        self.helper: Helper | None = None
        self.levels: NodeLevels | None = None

    def _leave(self) -> None:
        """A rank has left a collective in the middle: let no call take the short path, which does not notice."""
        self.plain.limit = -1
        if self._watched is not None:  # MPI's own calls, in which others may be, cannot notice
            self._watched.broken()

    def _gather_texts(self, text: bytes) -> list[bytes]:
        """Return the texts of all ranks."""
        lengths = self.link.gather_lengths(len(text))
        flat = np.empty(sum(lengths), np.uint8)
        with self.link.break_on_error:
            gather_to_all(self.link, np.frombuffer(text, np.uint8), flat, lengths)
        return [part.tobytes() for part in np.split(flat, np.cumsum(lengths)[:-1])]

    @property
    def traffic(self) -> Traffic:
        """Traffic of this rank without that of all-reduces in flight."""
        return self.link.traffic(self.plain.bytes_sent)

    def add_helper(self, twin: Twin, engine: Engine) -> Helper:
        """Begin to run all-reduces in flight on ``twin``, whose private side is ``engine``; collective.

        They leave NCCL out: its calls on two communicators at once, in another order on another rank, may block a GPU.
        """
        engine.reduction.nccl.preferred = False
        self.helper = Helper(twin, engine.settings, engine.link.count_native, threads_allowed(self.link.comm))
        return self.helper

    def free(self) -> None:
        """Wait for all-reduces in flight, then free the private communicators; collective."""
        if self.helper is not None:
            self.helper.free()
        if self.levels is not None:
            self.levels.free()
        if self._watched is not None:
            self._watched.leave()
        self.link.free()


class HasEngine:
    """Base of the classes that ``Comm`` consists of."""

    @property
    @abstractmethod
    def _engine(self) -> Engine:
        """The private side; the first use is collective."""

    @property
    @abstractmethod
    def _log(self) -> CallLog | None:
        """Log of calls; None if there is none, or no private side yet."""
