"""Lengths of the segments in which a long message travels between nodes.

MPI libraries send a message above some length only once its receiver has answered. Over TCP that answer queues behind
the rank's own outgoing data, which may be megabytes in the kernel's buffers: two ranks that swap 2 MiB need twice the
time of the wire, since one direction waits for the other (docs/benchmarks.md). Short messages need no answer, but each
costs its ranks time, which matters on a fast network.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from .._util.partition import pieces
from ..ops.device import device_of
from ..types import Array
from .interfaces import Link

EAGER_BYTES = 60_000  # sent without an answer over TCP: Open MPI's limit is 64 KiB with the header
EAGER_WINDOW = 16  # such segments in flight in each direction
SLOW = 0.16e9  # bytes per second, below which answers cost more than the many short messages
PROBE_BYTES, PROBES, PROBE_S = 1 << 20, 16, 0.1  # at most so many probes, none after so many seconds of them

Started = TypeVar("Started")


def segments(link: Link, work: Array, message: int, usual: tuple[int, int]) -> tuple[int, int]:
    """Return the bytes per segment and the segments in flight for a message of ``message`` bytes from ``work``.

    Collective; the same on all ranks. It is ``usual`` on one node, on a fast network, for short messages and for
    device memory.
    """
    if message <= EAGER_BYTES or link.nodes == 1 or device_of(work) is not None:
        return usual
    return on_network(link.slow, usual)


def on_network(slow: bool, usual: tuple[int, int]) -> tuple[int, int]:
    """Return the bytes per segment and the segments in flight for a long message in host memory between nodes."""
    return (EAGER_BYTES, EAGER_WINDOW) if slow else usual


def bandwidth(link: Link, barrier: Callable[[], object]) -> float:
    """Measure the bytes per second of a shift around the ring: the best probe, on the slowest rank (collective).

    A probe's messages need no answer: ranks that share cores answer late, and a fast network would look slow.
    """
    outgoing, incoming = np.zeros(PROBE_BYTES, np.uint8), np.empty(PROBE_BYTES, np.uint8)
    best, spent = np.inf, 0.0
    for _ in range(PROBES):
        barrier()  # a late rank must not count as a slow network
        start = time.perf_counter()
        shift(link, outgoing, incoming)
        slowest = np.array([time.perf_counter() - start])
        link.native_allreduce(slowest, "max")
        best, spent = min(best, slowest[0]), spent + slowest[0]
        if spent > PROBE_S:
            break
    return PROBE_BYTES / best


def shift(link: Link, outgoing: Array, incoming: Array) -> None:
    """Send to the right neighbour and receive from the left one, in segments of EAGER_BYTES."""
    right, left = (link.rank + 1) % link.size, (link.rank - 1) % link.size
    parts = list(pieces(0, outgoing.size, EAGER_BYTES))
    requests = [link.irecv(incoming[begin:end], left) for begin, end in parts]
    requests += [link.isend(outgoing[begin:end], right) for begin, end in parts]
    wait_all(link, requests)


def ahead(start: Callable[[int], Started], indices: range, lead: int = 1) -> Iterator[tuple[int, Started]]:
    """Yield every index and what ``start`` gave for it, which is called ``lead`` indices before."""
    started = deque(map(start, indices[:lead]))
    for index in indices:
        if index + lead in indices:
            started.append(start(index + lead))
        yield index, started.popleft()


def wait_all(link: Link, requests: Iterable[object]) -> None:
    """Wait for each request."""
    for request in requests:
        link.wait(request)
