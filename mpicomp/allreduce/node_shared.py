"""All-reduce among the ranks of a node through memory they share.

Schedule      The vector is cut into one slice a rank, every slice into blocks; piece k is block k of all slices. For
              each piece a rank copies its contribution into its slot of the shared memory, then adds its own block of
              all ranks in one pass, in the order of the ranks, then copies the others' finished blocks out. The three
              run one piece apart on slots that are used in turn, so that a rank seldom finds what it waits for
              missing; slots fit in the cache, so main memory sees each vector once.
              Vectors made by ``Comm.empty`` lie in shared memory already: they are added where they are, and the result
              is written to where it is wanted.
Cost          2 copies and one addition of n bytes a rank, of which main memory sees 2 n (read once, written once); the
              same in place. No messages.
Restrictions  the ranks of one node, host memory; half precision is added in float32 and rounded once.
              Deterministic: the sum is taken in rank order, whatever the length.
Reference     Jain et al., "Optimization of MPI collectives on shared memory", SC 2018 (SRM); Parsons and Pai,
              "Accelerating MPI collective communications through hierarchical algorithms", IPDPS 2014.
"""

from __future__ import annotations

from typing import Any

STREAM_BYTES = 8 << 20  # a rank's vector from which results are written past the caches


def allreduce(
    link: Any, work: Any, op: str, ops: Any, scratch: Any, kind: str | None = None, source: Any = None
) -> None:
    """``source``, if given, is reduced into ``work`` and stays as it is."""
    if link.size == 1 or work.size == 0:
        if source is not None:
            work[...] = source
        return
    send = work if source is None else source
    link.node.run("allreduce", send, work, op, kind or work.dtype.name, work.nbytes >= STREAM_BYTES)
