"""In which lengths a long message travels between nodes.

MPI libraries send a message above some length only once its receiver has answered. Over TCP that answer queues behind
whatever its rank is sending, megabytes at a time where the kernel's buffers take them: two ranks that swap 2 MiB need
twice the time the wire does, since one direction waits for the other
(docs/development/measurements.md). Short messages need no
answer, but cost their ranks' time, which on a fast network is what counts.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ..ops.device import device_of

EAGER_BYTES = 60_000  # goes without an answer over TCP: Open MPI's limit is 64 KiB with the header
EAGER_WINDOW = 16  # such segments in flight in each direction
SLOW = 0.3e9  # bytes a second, below which answers cost more than the many short messages
LEAST_BYTES = 128 << 10  # of a message to one rank, for which it matters
PROBE_BYTES, PROBES = 512 << 10, 3


def segments(link: Any, work: Any, message: int, usual: tuple[int, int]) -> tuple[int, int]:
    """Bytes of a segment and how many are in flight, for messages of ``message`` bytes from ``work``; collective.

    ``usual`` on one node, on a fast network, for short messages and device memory; the same on all ranks.
    """
    if message < LEAST_BYTES or link.nodes == 1 or device_of(work) is not None:
        return usual
    if link.slow is None:
        link.slow = bandwidth(link) < SLOW
    return on_network(link.slow, usual)


def on_network(slow: bool, usual: tuple[int, int]) -> tuple[int, int]:
    """Bytes of a segment of a long message on the host between nodes, and how many are in flight."""
    return (EAGER_BYTES, EAGER_WINDOW) if slow else usual


def bandwidth(link: Any) -> float:
    """Bytes a second of a shift around the ring, the best of PROBES as slow as the slowest rank (collective)."""
    right, left = (link.rank + 1) % link.size, (link.rank - 1) % link.size
    outgoing, incoming = np.zeros(PROBE_BYTES, np.uint8), np.empty(PROBE_BYTES, np.uint8)
    best = np.inf
    for _ in range(PROBES):
        link.comm.Barrier()  # a rank that is late says nothing about the network
        start = time.perf_counter()
        link.sendrecv(outgoing, right, incoming, left)
        slowest = np.array([time.perf_counter() - start])
        link.native_allreduce(slowest, "max")
        best = min(best, slowest[0])
    return PROBE_BYTES / best
