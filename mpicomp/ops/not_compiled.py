"""Stand-ins of what only the extension can do: no short way of small all-reduces, no sums in shared memory."""

from __future__ import annotations

from collections.abc import Callable

LINE_BYTES = 64


def has_kernel(op: str, kind: str) -> bool:
    """False: ``node_shared`` covers no type."""
    return False


def plain_nbytes(send: object, receive: object) -> int:
    """-1: no pair of arrays goes to MPI without a closer look."""
    return -1


class NodeWindow:
    """Never made: `mpicomp.comm.node_memory.Node` finds no memory to share."""


class PlainCalls:
    """Counts calls and lets none take the short way."""

    going = None
    comparing = False

    def __init__(self, native: object, in_place: object, size: int = 1, logged: bool = False) -> None:
        self.calls = self.mask = self.number = self.bytes_sent = 0
        self.limit = -1

    def run(self, comm: object, send: object, receive: object, op: object) -> bool:
        return False

    def learn(self, send: object, receive: object, op: object, signature: Callable[[], object]) -> None:
        """Nothing to learn: every call is looked at."""

    def forget(self) -> None:
        """Nothing was learnt."""

    def latest(self) -> list[tuple[object, ...]]:
        return []
