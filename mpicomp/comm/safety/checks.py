"""Comparison of calls over the ranks before data moves, until calls like them are known."""

from __future__ import annotations

from collections.abc import Callable

from ...ops.node_shared import PlainCalls
from .agreement import Agreement
from .call_log import CallLog

CHECKED_CALLS = 64  # the first calls are all compared, then one in as many
KNOWN = 1024  # kinds of calls remembered: the first call of each kind is compared


class Checks:
    """The comparisons of one communicator.

    Parameters
    ----------
    plain : PlainCalls
        Counts the calls; a call is compared if ``calls & mask`` is 0.
    wanted : str
        ``1`` compares all calls, ``0`` none, ``auto`` the first calls, calls of a new kind, and some others.
    size : int
        The number of ranks.
    """

    def __init__(self, agreement: Agreement, plain: PlainCalls, log: CallLog | None, wanted: str, size: int) -> None:
        self.agreement, self._plain, self._log = agreement, plain, log
        plain.mask = -1 if wanted == "0" or size == 1 else 0
        self._later_mask = 0 if wanted == "1" else CHECKED_CALLS - 1
        self._known: set[tuple[object, ...]] = set()  # the same on all ranks

    def compare(self, signature: str, error: Exception | None = None, patient: bool = False) -> None:
        """Raise the same exception on every rank unless all gave the same ``signature`` and no ``error``."""
        log = self._log
        if log is None:
            self.agreement.check(signature, error, patient)
            return
        try:
            log.agree(signature)
            self.agreement.check(signature, error, patient)
        finally:
            log.end()

    def verify(self, signature: Callable[[], str]) -> None:
        """Compare the call of a verb if all calls are compared; only then is its ``signature`` worked out."""
        if self._plain.mask == 0 == self._later_mask:
            self.next_call()
            self.compare(f"call {self._plain.calls}: {signature()}")

    def next_call(self) -> bool:
        """Count a call; return True if its turn to be compared has come."""
        self._plain.calls += 1
        due = not self._plain.calls & self._plain.mask
        if due:
            self._after_first_calls()
        return due

    def compare_plain(self, text: str) -> None:
        """Compare a small all-reduce that ``PlainCalls`` has counted, and logs."""
        self._after_first_calls()
        self.agreement.check(f"Allreduce call {self._plain.calls}: {text}")

    def compare_next(self, text: str, error: Exception | None) -> None:
        """Compare the all-reduce that ``next_call`` has counted."""
        self.compare(f"Allreduce call {self._plain.calls}: {text}", error)

    def is_new(self, key: tuple[object, ...]) -> bool:
        """Return True if calls are compared, but none of this kind has been."""
        return self._plain.mask != -1 and key not in self._known

    def learn(self, key: tuple[object, ...]) -> None:
        """Remember that the ranks agree on calls of this kind."""
        if len(self._known) >= KNOWN:  # on all ranks at once
            self._known.clear()
            self._plain.forget()
        self._known.add(key)

    def _after_first_calls(self) -> None:
        if self._plain.calls == CHECKED_CALLS:
            self._plain.mask = self._later_mask
