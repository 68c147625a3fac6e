"""What ranks compare before data moves, as verbs of ``Comm``; and which calls need no comparison any more."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgument
from ...ops.node_shared import PlainCalls
from .agreement import Agreement
from .call_log import Calls, logged

if TYPE_CHECKING:
    from ..reduction import Reduction
    from ..transport import Link

CHECKED_CALLS = 64  # so many first calls are all checked for agreement, then one in as many
KNOWN = 1024  # different calls remembered: the first of each kind is checked


class Opened:
    """What ``Comm`` is mixed of and has: its private side, made on first use."""

    _link: Link | None = None
    _plain: PlainCalls  # which also numbers the calls; one is checked for agreement when ``number & mask`` is 0
    _reduction: Reduction
    _default: str  # algorithm

    @abstractmethod
    def _open(self) -> Link:
        """Make the private side; collective."""


class Checks(Opened):
    """Mixed into ``Comm``."""

    _agreement: Agreement
    _log: Calls | None = None
    _later_mask = 0
    _known: set[tuple[Any, ...]]  # keys of calls that ranks have agreed on: the same set on all of them

    def agree(self, signature: str, error: Exception | None = None, patient: bool = False) -> None:
        """Raise the same exception on every rank unless all gave the same ``signature`` and no ``error``.

        ``patient`` is for waits of milliseconds: it leaves the core to whoever has work.

        Raises
        ------
        Disagreement
            The signatures differ: the text says which ranks gave what.
        Exception
            Some ranks gave an error: that of the lowest, in its own class, as ``rank r: text``.
        """
        if self._link is None:
            self._open()
        self._compare(signature, error, patient)

    @logged
    def extremes(self, number: int) -> tuple[int, int]:
        """The least and the greatest ``number`` of all ranks: log2(size) messages of 16 bytes, not in `traffic`."""
        return (self._link or self._open()).extremes(number, False)

    def fail_together(self, error: Exception | None) -> None:
        """Raise on every rank the error that any of them has."""
        self.agree("", error)

    def _compare(self, signature: str, error: Exception | None = None, patient: bool = False) -> None:
        log = self._log
        if log is None:
            self._agreement.check(signature, error, patient)
            return
        try:
            log.agree(signature)
            self._agreement.check(signature, error, patient)
        finally:
            log.end()

    def _verify(self, signature: str) -> None:
        """Compare a call of a verb with that of the other ranks, where all calls are checked."""
        if self._plain.mask == 0 == self._later_mask:
            self._next_call()
            self._compare(f"call {self._plain.calls}: {signature}")

    def _compare_plain(self, text: str) -> None:
        """Compare a small all-reduce that ``PlainCalls`` has counted, logs, and will do."""
        plain = self._plain
        if plain.calls == CHECKED_CALLS:
            plain.mask = self._later_mask
        self._agreement.check(f"Allreduce call {plain.calls}: {text}")

    def _next_call(self) -> bool:
        """Count a call; whether its turn to be compared has come."""
        plain = self._plain
        plain.calls += 1
        due = not plain.calls & plain.mask
        if due and plain.calls == CHECKED_CALLS:
            plain.mask = self._later_mask
        return due

    def _set_checks(self, wanted: str, size: int) -> None:
        """As ``MPICOMP_CHECK`` says, on ``size`` ranks."""
        if wanted not in ("0", "1", "auto"):
            raise InvalidArgument(f"MPICOMP_CHECK must be 0, 1 or auto, got {wanted!r}")
        self._plain.mask = -1 if wanted == "0" or size == 1 else 0
        self._later_mask = 0 if wanted == "1" else CHECKED_CALLS - 1

    def _forget_calls(self) -> None:
        self._known = set()
        self._plain.forget()

    def _learn(self, key: tuple[Any, ...]) -> None:
        """Ranks have agreed on a call like this one."""
        if len(self._known) >= KNOWN:  # on all ranks at once
            self._known.clear()
            self._plain.forget()
        self._known.add(key)
