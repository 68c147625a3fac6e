"""Measurement of this job's machine for ``mpicomp simulate``: messages within and between nodes, array operations.

All ranks measure the same at the same time, because in a step they share memory, cores and links, too.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from .._util.partition import pieces
from .._util.progress import Progress, part_of, silent
from ..allreduce import ring
from ..allreduce.segments import SLOW, on_network
from .kernels import Case, themes

if TYPE_CHECKING:
    from ..comm.comm import Comm
    from ..comm.interfaces import Request

    Wait = Callable[[Request], object]

LONG_S = 0.02  # minimum duration of a message whose bandwidth is measured
MOST_BYTES = 64 << 20
CALLS = (5, 200)  # minimum and maximum number of timed calls
ROUND_S = 0.3  # approximate duration of each measurement
KERNEL_ELEMENTS = 1 << 23  # more than caches hold, of memory and gradient together
LOST_LATENCY = 1e-7  # lower bound of a latency
AGREED_BYTES = 128 << 10  # a message that both ranks agree on first
PIECE_S, BESIDE = 2e-4, 3  # seconds of a piece of work beside a message; seconds of all pieces, in those of the message
PIECE = 1 << 14  # elements
PAIRS = 9  # of that work alone and beside messages, in turn


def machine(comm: Comm, say: Progress = silent) -> dict[str, Any]:
    """The machine as the document that ``mpicomp.simulate.machine.load`` reads (collective)."""
    from ..comm.comm import Comm

    per_node, nodes = comm.layout
    node, place = own_node(comm)
    document: dict[str, Any] = {"ranks_per_node": per_node}
    say("messages", 0.0)
    for name, group, other in (("within", node, place), ("between", place, node)):
        several = per_node if name == "within" else nodes
        if several > 1:
            part = comm.Split(group, other)
            private = Comm(part)
            document[name] = wire(private, comm, per_node if name == "between" else 0)
            private.Free()
            part.Free()
    document.setdefault("between", document.get("within"))
    document.setdefault("within", document["between"])
    if nodes > 1:  # all ranks of a node sent at once: the link carried that much together
        document["between"]["bandwidth"] *= per_node
    document["kernels"] = kernels(comm, part_of(say, 0.3, 1.0))
    return document


def own_node(comm: Comm) -> tuple[int, int]:
    """The lowest rank on this rank's node, as the number of the node, and this rank's place on it (collective)."""
    from ..comm.node_memory import split_node

    ranks = split_node(comm, comm.layout[0])
    node, place = ranks.bcast(comm.rank), ranks.rank
    ranks.Free()
    return node, place


def wire(part: Comm, everyone: Comm, beside: int) -> dict[str, float]:
    """Latency, overhead and bandwidth among the ranks of ``part``, the slowest of those in ``everyone``.

    A ring all-reduce of a few bytes has 2(p-1) messages one after the other, with the overhead of a schedule; a shift
    of a long message to the next rank uses all links both ways. It is cut as dense schedules cut their messages, by
    the rate of a link that ``beside`` ranks share; 0 is the memory of a node.
    """
    size = everyone.allreduce(part.size, max_of)  # a rank alone on its node takes part in collectives of all
    tiny = np.ones(size, np.float32)
    step = typical(lambda: part.Allreduce(None, tiny, algorithm="ring"), everyone) / (2 * (size - 1))
    nbytes, seconds, usual = 1 << 16, 0.0, (ring.SEGMENT_BYTES, ring.WINDOW)
    while seconds < LONG_S and nbytes < MOST_BYTES:
        nbytes *= 2
        seconds = typical(shift(part, nbytes, *usual), everyone)
    cut = on_network(True, usual) if beside and beside * nbytes / seconds < SLOW else usual
    if cut != usual:
        seconds = typical(shift(part, nbytes, *cut), everyone)
    overhead = everyone.allreduce(time_of_posting(part), max_of)
    bandwidth = nbytes / max(seconds - step, seconds / 2)
    long, short = (typical(shift(part, length, *usual), everyone) for length in (AGREED_BYTES, 1))
    found = {
        "latency": max(LOST_LATENCY, step - 2 * overhead),
        "overhead": min(overhead, step / 2),
        "bandwidth": bandwidth,
        "handshake": max(0.0, long - short - AGREED_BYTES / bandwidth),
    }
    if beside:
        found["processor"] = min(1 / bandwidth, time_beside(shift(part, nbytes, *cut), seconds, everyone) / nbytes)
    return found


def time_beside(messages: Callable[[Wait], None], seconds: float, everyone: Comm) -> float:
    """Return the time by which messages of so many ``seconds`` prolong work that fills their waits (collective)."""
    target, source = np.ones((2, PIECE), np.float32)

    def work(times: int) -> None:
        for _ in range(times):
            np.copyto(target, source)

    times = max(1, math.ceil(PIECE_S / (typical(lambda: work(100), everyone) / 100)))
    pieces = math.ceil(BESIDE * seconds / typical(lambda: work(times), everyone))

    def both() -> None:
        left = pieces

        def wait(request: Request) -> None:
            nonlocal left
            while left and not request.Test():
                work(times)
                left -= 1
            request.Wait()

        messages(wait)
        work(left * times)

    longer = [timed(both, everyone) - timed(lambda: work(pieces * times), everyone) for _ in range(PAIRS)]
    return max(0.0, median(longer))


def shift(part: Comm, nbytes: int, segment: int, window: int) -> Callable[..., None]:
    """A call in which every rank sends to the next and receives from the previous, ``window`` segments at a time.

    A single rank sends to itself. The call takes the function that waits for a message.
    """
    outgoing, incoming = np.ones((2, nbytes), np.uint8)  # pages of zeros would be one page, in every cache
    right, left = (part.rank + 1) % part.size, (part.rank - 1) % part.size

    def run(wait: Wait = lambda request: request.Wait()) -> None:
        started: deque[Request] = deque()
        for begin, end in pieces(0, nbytes, segment):
            if len(started) == 2 * window:
                wait(started.popleft())
                wait(started.popleft())
            started.append(part.Irecv(incoming[begin:end], left))
            started.append(part.Isend(outgoing[begin:end], right))
        for request in started:
            wait(request)

    return run


def time_of_posting(part: Comm) -> float:
    """Seconds of a rank's own time per message: half the time of sending one to itself."""
    one = np.zeros(1, np.uint8)
    rank = part.rank
    times = []
    for _ in range(CALLS[1]):
        start = time.perf_counter()
        part.send_and_receive({rank: one}, {rank: 1}, one)
        times.append(time.perf_counter() - start)
    return median(times) / 2


def typical(call: Callable[[], object], comm: Comm) -> float:
    """Median seconds per call of the slowest rank, all ranks at once (collective)."""
    times: list[float] = []
    while len(times) < CALLS[0] or (len(times) < CALLS[1] and sum(times) < ROUND_S):  # the same on all ranks
        times.append(timed(call, comm))
    return median(times)


def timed(call: Callable[[], object], comm: Comm) -> float:
    """Seconds of one call on the slowest rank (collective)."""
    comm.Barrier()
    start = time.perf_counter()
    call()
    return comm.allreduce(time.perf_counter() - start, max_of)


def max_of(a: float, b: float, _datatype: object = None) -> float:
    """The maximum as an operation for mpi4py: only mpicomp.comm imports MPI's own."""
    return max(a, b)


def kernels(comm: Comm, say: Progress, n: int = KERNEL_ELEMENTS) -> dict[str, float]:
    """Seconds per element of every operation, all ranks at once; the mean over ranks."""
    measured: dict[str, float] = {}
    every = themes(n)
    for number, theme in enumerate(every):
        say("operations", number / len(every))
        measured |= rates(theme(), comm)
    return measured


def rates(cases: list[Case], comm: Comm) -> dict[str, float]:
    """Seconds per element of some operations.

    All elapsed time counts: ranks that share a core take turns every few milliseconds, which the median of calls as
    short as these would hide.
    """
    measured = {}
    for name, call, elements in cases:
        comm.Barrier()
        calls, seconds, start = 0, 0.0, time.perf_counter()
        while calls < CALLS[0] or seconds < ROUND_S / 5:
            call()
            calls, seconds = calls + 1, time.perf_counter() - start
        measured[name] = comm.allreduce(seconds / calls / elements) / comm.size
    return measured
