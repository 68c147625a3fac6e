"""Formulas of the dense schedules: steps, bytes and additions of one rank, and their time.

Counted traffic and simulated times are held against them. The model is the usual one: a message of m bytes takes
``latency + m / bandwidth``, an addition ``gamma`` per byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mpicomp._util.partition import partition
from mpicomp.allreduce.native import least_bytes


@dataclass(frozen=True)
class Cost:
    """One rank's share of a schedule; that of the busiest rank if they differ."""

    steps: int  # messages that wait for each other
    nbytes: float  # bytes sent along those steps
    reduced: float  # bytes of operands added

    def time(self, latency: float, inverse_bandwidth: float, gamma: float = 0.0) -> float:
        """Return the seconds, from seconds per message, per byte sent and per byte added."""
        return self.steps * latency + self.nbytes * inverse_bandwidth + self.reduced * gamma


def ring(nbytes: float, size: int) -> Cost:
    share = (size - 1) / size
    return Cost(2 * (size - 1), 2 * share * nbytes, share * nbytes)


def direct(nbytes: float, size: int) -> Cost:
    share = (size - 1) / size
    return Cost(2, 2 * share * nbytes, share * nbytes)


def node_shared(nbytes: float, size: int) -> Cost:
    """Cost on one node: every rank adds its slice of all vectors; nothing is sent."""
    return Cost(2, 0.0, (size - 1) / size * nbytes)


def halving_doubling(nbytes: float, size: int) -> Cost:
    pof2 = 1 << (size.bit_length() - 1)
    fold = 1 if size > pof2 else 0
    share = (pof2 - 1) / pof2
    return Cost(2 * (pof2.bit_length() - 1) + 2 * fold, 2 * (share + fold) * nbytes, (share + fold) * nbytes)


def broadcast_chain(nbytes: float, size: int, segments: int = 1) -> Cost:
    steps = segments + size - 2
    return Cost(steps, steps * nbytes / segments, 0.0)


def broadcast_binomial(nbytes: float, size: int) -> Cost:
    steps = (size - 1).bit_length()
    return Cost(steps, steps * nbytes, 0.0)


def gather_ring(nbytes: float, size: int) -> Cost:
    """``nbytes`` is one rank's contribution."""
    return Cost(size - 1, (size - 1) * nbytes, 0.0)


ALLREDUCE: dict[str, Callable[[float, int], Cost]] = {
    "native": ring,
    "ring": ring,
    "halving_doubling": halving_doubling,
    "direct": direct,
    "node_shared": node_shared,
}


def allreduce_bytes(algorithm: str, n: int, itemsize: int, size: int, rank: int) -> tuple[int, int]:
    """Return the exact bytes that ``rank`` sends and receives in an all-reduce of ``n`` elements."""
    if size == 1 or algorithm == "node_shared":
        return 0, 0
    if algorithm == "native":
        return (least_bytes(n * itemsize, size),) * 2
    count = {"ring": ring_elements, "direct": direct_elements, "halving_doubling": halving_elements}[algorithm]
    sent, received = count(n, size, rank)
    return sent * itemsize, received * itemsize


def ring_elements(n: int, size: int, rank: int) -> tuple[int, int]:
    counts, _ = partition(n, size)
    # Sent: blocks rank, rank-1, ..., then rank+1, rank, ...: all but rank+1, all but rank+2.
    sent = 2 * n - counts[(rank + 1) % size] - counts[(rank + 2) % size]
    return sent, 2 * n - counts[rank] - counts[(rank + 1) % size]


def direct_elements(n: int, size: int, rank: int) -> tuple[int, int]:
    own = partition(n, size)[0][rank]
    both = (n - own) + (size - 1) * own
    return both, both


def halving_elements(n: int, size: int, rank: int) -> tuple[int, int]:
    pof2 = 1 << (size.bit_length() - 1)
    rem = size - pof2
    if rank < 2 * rem and rank % 2 == 0:
        return n, n
    folded = n if rank < 2 * rem else 0
    newrank = rank // 2 if rank < 2 * rem else rank - rem
    counts, _ = partition(n, pof2)
    own = counts[newrank]
    # Halving sends everything but the own block and receives the kept part at each level; doubling is its mirror.
    kept, low, high, mask = 0, 0, pof2, pof2 >> 1
    while mask:
        middle = (low + high) // 2
        low, high = (middle, high) if newrank & mask else (low, middle)
        kept += sum(counts[low:high])
        mask >>= 1
    return folded + (n - own) + kept, folded + kept + (n - own)
