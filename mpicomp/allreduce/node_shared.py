"""All-reduce among the ranks of a node through memory they share; between nodes every rank exchanges its slice.

Schedule      The vector is cut into one slice per rank of the node, every slice into blocks; piece k is block k of all
              slices. For each piece a rank copies its contribution into its slot of the shared memory, then adds its
              own block of all ranks in one pass, in the order of the ranks, then copies the others' finished blocks
              out. The three run one piece apart on slots that are used in turn, so that a rank seldom has to wait;
              slots fit in the cache, so main memory sees each vector once. Ranks whose cores share no cache write the
              slots past their caches, which they find out by timing (mpicomp/ops/cpu/node.cpp).
              Vectors made by ``Comm.empty`` are in shared memory already: they are added in place, and the result
              is written directly to its destination.
              On several nodes this is cut in two, reduce-scatter and all-gather, and between them every rank runs a
              ring, or halving-doubling (see `choice.between_nodes`), with the ranks of the other nodes that have the
              same slice: all of them use the network at once.
              If nodes have unequal numbers of ranks, there are as many slices as the smallest has ranks. On larger
              nodes, the ranks without a slice only contribute their vector and read the result.
              Half precision is exchanged by `direct`, which adds in float32.
              Parts of the vector follow each other, so that the memory of one works while another is on the wire.
Cost          On a node 2 copies and one addition of n bytes per rank, of which main memory sees 2 n (read once, written
              once; 4 n to 5 n with slots past the caches), and no message. Between m nodes with q slices the steps of
              the ring, or of halving-doubling; 2(m-1)/(m q) n bytes sent by a rank that has a slice.
Restrictions  host memory, through which device arrays are staged; logical and bitwise operations of integers only.
              Half precision is added in float32 and rounded once per node, and once between nodes. On one node the
              sum is taken in rank order.
Reference     Jain et al., "Framework for scalable intra-node collective operations using shared memory", SC 2018;
              Parsons and Pai, "Accelerating MPI collective communications through hierarchical algorithms without
              sacrificing inter-node communication flexibility", IPDPS 2014.
"""

from __future__ import annotations

from collections.abc import Iterator

from .._util.partition import pieces
from ..types import Array, dtype_name
from . import get
from .choice import between_nodes
from .interfaces import Arithmetic, Link, NodeMemory, Scratch

STREAM_BYTES = 8 << 20  # a rank's vector from which results are written past the caches
PART_BYTES = 8 << 20  # of a vector over several nodes: one is on the wire while its neighbours are in memory


def allreduce(
    link: Link, work: Array, op: str, ops: Arithmetic, scratch: Scratch, factor: float = 1.0,
    source: Array | None = None, kind: str | None = None,
) -> None:
    source = work if source is None else source
    stream = work.nbytes >= STREAM_BYTES
    if link.one_node:
        link.node.run("allreduce", source, work, op, kind or dtype_name(work.dtype), stream, factor)
        return
    length = max(1, PART_BYTES // work.itemsize)
    bounds = list(pieces(0, work.size, length))
    local = InMemory(link.node, source, work, op, kind or dtype_name(work.dtype), bounds, stream)
    across, half = link.across, {"kind": kind} if kind else {}
    between = get("direct" if kind or across is None else between_nodes(across))
    local.reduce(0)
    for part in range(len(bounds)):
        mine = work[slice(*bounds[part])]
        mine = mine[link.node.slice(mine)]
        with (across or link).meanwhile(local.neighbours(part)):  # of all ranks: simulations record no waits in it
            if across is not None:
                between(across, mine, op, ops, scratch, factor, **half)
    local.distribute(len(bounds) - 1)


class InMemory:
    """Reduction and distribution among the ranks of this node, part by part of the vector."""

    def __init__(self, node: NodeMemory, source: Array, work: Array, op: str, kind: str,
                 bounds: list[tuple[int, int]], stream: bool) -> None:
        self.node, self.source, self.work, self.bounds, self.stream = node, source, work, bounds, stream
        self.op, self.kind = op, kind

    def reduce(self, part: int) -> None:
        """Add the vectors of this node, every rank its slice."""
        self._run("reduce_scatter", part)

    def distribute(self, part: int) -> None:
        """Copy the finished slices to all ranks of this node."""
        self._run("all_gather", part)

    def neighbours(self, part: int) -> Iterator[None]:
        """Work for the time while ``part`` is on the wire: finish the previous part, prepare the next."""
        if part > 0:
            self.distribute(part - 1)
            yield
        if part + 1 < len(self.bounds):
            self.reduce(part + 1)
            yield

    def _run(self, verb: str, part: int) -> None:
        where = slice(*self.bounds[part])
        send, receive = self.source[where], self.work[where]
        self.node.run(verb, send, receive, self.op, self.kind, self.stream)
