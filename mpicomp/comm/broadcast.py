"""Broadcast, pipelined.

Schedule      Over a network, a chain: root, root+1, ... around the ring; each rank forwards a segment as soon as it has
              it, so that all links are busy at once. Vectors that are short compared to the number of ranks, and all
              vectors on one node, go down a binomial tree in one message: if the chain's p-2+s segment times for s
              segments exceed the tree's s log2(p).
Cost          Chain: p-2+s steps; n bytes sent by every rank but the last.
              Tree: log2(p) steps; the root sends n log2(p) bytes.
Restrictions  None.
Reference     Open MPI coll_base_bcast.c (pipeline, binomial).
"""

from __future__ import annotations

import numpy as np

from .._util.partition import chunk_count
from ..allreduce.interfaces import Link
from ..types import Array
from .interfaces import Communicator
from .safety.collective_errors import run_collectively

# Below MPI libraries' usual limit for eager messages (64 KiB over TCP), above which a hand-shake delays the chain. In a
# long vector the number of segments costs more than the hand-shake.
SEGMENT_BYTES = 32 * 1024
LONG_BYTES, LONG_SEGMENT_BYTES = 16 << 20, 256 * 1024
WINDOW = 4


def broadcast(link: Link, x: Array, root: int) -> None:
    """Make the 1-D byte array ``x`` of every rank equal to that of ``root``."""
    if link.size == 1 or x.size == 0:
        return
    segments = chunk_count(x.size, segment_bytes(x.size))
    rounds = (link.size - 1).bit_length()
    if link.one_node or segments * rounds <= segments + link.size - 2:
        binomial(link, x, root)
    else:
        chain(link, x, root)


def broadcast_bytes(comm: Communicator, content: bytes, root: int = 0) -> np.ndarray:
    """Return the ``content`` of rank ``root``; if a rank has no memory for it, raise on every rank (collective)."""
    size = comm.lengths_of_all(len(content))[root]
    data = run_collectively(comm, lambda: (np.frombuffer(content, np.uint8).copy() if comm.rank == root else
                                           np.empty(size, np.uint8)))  # fmt: skip
    comm.broadcast(data, root)
    return data


def segment_bytes(nbytes: int) -> int:
    return SEGMENT_BYTES if nbytes <= LONG_BYTES else LONG_SEGMENT_BYTES


def binomial(link: Link, x: Array, root: int) -> None:
    relative = (link.rank - root) % link.size
    mask = 1
    while mask < link.size and not relative & mask:
        mask <<= 1
    if relative:
        link.wait(link.irecv(x, (link.rank - mask) % link.size))
    sent = []
    mask >>= 1
    while mask:
        if relative + mask < link.size:
            sent.append(link.isend(x, (link.rank + mask) % link.size))
        mask >>= 1
    for request in sent:
        link.wait(request)


def chain(link: Link, x: Array, root: int) -> None:
    relative = (link.rank - root) % link.size
    first, last = relative == 0, relative == link.size - 1
    left, right = (link.rank - 1) % link.size, (link.rank + 1) % link.size
    length = segment_bytes(x.size)
    n_segments = chunk_count(x.size, length)
    segments = [x[index * length : (index + 1) * length] for index in range(n_segments)]

    inbox = [] if first else [link.irecv(part, left) for part in segments[:WINDOW]]
    outbox = []
    for index, part in enumerate(segments):
        if not first:
            link.wait(inbox[index])
            if index + WINDOW < n_segments:
                inbox.append(link.irecv(segments[index + WINDOW], left))
        if not last:
            outbox.append(link.isend(part, right))
            if index >= WINDOW:
                link.wait(outbox[index - WINDOW])
    for request in outbox[-WINDOW:]:
        link.wait(request)
