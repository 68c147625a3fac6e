"""Measures this job's machine for ``mpicomp simulate``: messages within and between nodes, and operations on arrays.

Everything is measured while all ranks do the same, as in a step: they share memory, cores and links then, too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from .._util.partition import pieces
from ..allreduce import ring
from ..allreduce.segments import SLOW, on_network
from .kernels import Case, themes

LONG_S = 0.02  # a message that takes so long is long enough to tell a bandwidth
MOST_BYTES = 64 << 20
CALLS = (5, 200)  # of what is timed, fewest and most
ROUND_S = 0.3  # for each thing that is timed, about
KERNEL_ELEMENTS = 1 << 23  # more than caches hold, of memory and gradient together
SHORT_SCHEME, SHORT = "scalecom:chunk=112", 1000  # and elements, for what a step costs whatever its length
LOST_LATENCY = 1e-7  # what a latency is at least


def machine(comm: Any, say: Callable[[str, float], None] = lambda text, done: None) -> dict[str, Any]:
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
    say("operations", 0.3)
    document["kernels"] = kernels(comm, lambda share: say("operations", 0.3 + 0.7 * share))
    document["kernels"]["step"] = own_time_of_step(comm)
    return document


def own_node(comm: Any) -> tuple[int, int]:
    """The lowest rank of this rank's node, which stands for the node, and this rank's place on it (collective)."""
    from ..comm.node_memory import split_node

    ranks = split_node(comm, comm.layout[0])
    node, place = ranks.bcast(comm.rank), ranks.rank
    ranks.Free()
    return node, place


def wire(part: Any, everyone: Any, beside: int) -> dict[str, float]:
    """Latency, overhead and bandwidth among the ranks of ``part``, the slowest of those in ``everyone``.

    A ring all-reduce of a few bytes has 2(p-1) messages one after the other, with all that a schedule does about each;
    a shift of a long message to the next rank uses all links both ways. It is cut as dense schedules cut theirs, which
    goes by the rate of a link that ``beside`` ranks share; 0 stands for the memory of a node.
    """
    size = everyone.allreduce(part.size, max_of)  # a rank alone on its node takes part in what all do together
    tiny = np.ones(size, np.float32)
    step = typical(lambda: part.Allreduce(None, tiny, algorithm="ring"), everyone) / (2 * (size - 1))
    nbytes, seconds, usual = 1 << 16, 0.0, (ring.SEGMENT_BYTES, ring.WINDOW)
    while seconds < LONG_S and nbytes < MOST_BYTES:
        nbytes *= 2
        seconds = typical(shift(part, nbytes, *usual), everyone)
    if beside and beside * nbytes / seconds < SLOW:
        seconds = typical(shift(part, nbytes, *on_network(True, usual)), everyone)
    overhead = everyone.allreduce(time_of_posting(part), max_of)
    return {
        "latency": max(LOST_LATENCY, step - 2 * overhead),
        "overhead": min(overhead, step / 2),
        "bandwidth": nbytes / max(seconds - step, seconds / 2),
    }


def own_time_of_step(comm: Any) -> float:
    """Seconds of a scheme's step that do not grow with the vector: a short step of every rank alone, all at once."""
    from ..comm.comm import Comm
    from ..reducer.reducer import Reducer

    own = comm.Split(comm.rank, 0)
    alone = Comm(own)
    reducer, gradient = Reducer(alone, SHORT_SCHEME), np.ones(SHORT, np.float32)
    seconds = typical(lambda: reducer.reduce_sparse(gradient), comm)
    alone.Free()
    own.Free()
    return seconds


def shift(part: Any, nbytes: int, segment: int, window: int) -> Callable[[], None]:
    """Every rank sends to the next and receives from the one before, ``window`` segments at a time each way.

    One alone does so with itself.
    """
    outgoing, incoming = np.ones((2, nbytes), np.uint8)  # of zeros all pages would be one, in every cache
    right, left = (part.rank + 1) % part.size, (part.rank - 1) % part.size

    def run() -> None:
        started: deque[Any] = deque()
        for begin, end in pieces(0, nbytes, segment):
            if len(started) == 2 * window:
                started.popleft().Wait()
                started.popleft().Wait()
            started.append(part.Irecv(incoming[begin:end], left))
            started.append(part.Isend(outgoing[begin:end], right))
        for request in started:
            request.Wait()

    return run


def time_of_posting(part: Any) -> float:
    """Seconds of a rank's own time for a message: what sending one to oneself takes, halved."""
    one = np.zeros(1, np.uint8)
    rank = part.rank
    times = []
    for _ in range(CALLS[1]):
        start = time.perf_counter()
        part.send_and_receive({rank: one}, {rank: 1}, one)
        times.append(time.perf_counter() - start)
    return median(times) / 2


def typical(call: Callable[[], Any], comm: Any) -> float:
    """Median seconds of a call that all ranks make together, as slow as the slowest rank."""
    times: list[float] = []
    while len(times) < CALLS[0] or (len(times) < CALLS[1] and sum(times) < ROUND_S):  # the same on all ranks
        times.append(timed(call, comm))
    return median(times)


def timed(call: Callable[[], Any], comm: Any) -> float:
    comm.Barrier()
    start = time.perf_counter()
    call()
    return comm.allreduce(time.perf_counter() - start, max_of)


def max_of(a: Any, b: Any, _type: Any = None) -> Any:
    """A reduction that needs no name of MPI's here."""
    return max(a, b)


def kernels(comm: Any, say: Callable[[float], None], n: int = KERNEL_ELEMENTS) -> dict[str, float]:
    """Seconds an element of every operation, all ranks at once; the mean over ranks."""
    measured: dict[str, float] = {}
    every = themes(n)
    for number, theme in enumerate(every):
        say(number / len(every))
        measured |= rates(theme(), comm)
    return measured


def rates(cases: list[Case], comm: Any) -> dict[str, float]:
    """Seconds an element of some operations.

    All time that passes counts: ranks that share a core take turns every few milliseconds, which the median of calls
    as short as these would hide.
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
