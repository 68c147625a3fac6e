"""Choice of the schedule for ``auto``, and for a schedule that does not cover the vector."""

from __future__ import annotations

from ..ops.node_shared import has_kernel
from . import LOSSY, ON_DEVICES, ON_HOSTS, VERBS
from .interfaces import Link, Operand
from .table import BY_NETWORK

NATIVE_BYTES_PER_NODE = 256 << 10  # up to which MPI's own schedule is used between nodes on a fast network


def schedule(target: Operand, op: str, algorithm: str, link: Link) -> str:
    """Return the name of the schedule that runs for the requested ``algorithm``."""
    if algorithm in LOSSY:
        return algorithm  # which adds in rank order, too
    if link.reproducible and link.size > 1:
        return in_rank_order(target, op, link)
    if algorithm in ON_DEVICES:
        return algorithm
    own = op in VERBS  # logical and bitwise operations are not for the schedules that send messages
    if algorithm == "auto":
        algorithm = automatic(target, link)
    if algorithm == "node_shared":
        if shares_memory(target, op, link):
            return algorithm
        algorithm = "ring"
    if not own:
        return "native"
    if target.kind == "bfloat16" or (target.kind and algorithm != "native"):
        return "direct"  # the one that sums half precision in float32
    return algorithm


def in_rank_order(target: Operand, op: str, link: Link) -> str:
    """Return the schedule of the reproducible mode, which combines elements in the order of the ranks.

    Logical and bitwise operations give the same bits in any order.
    """
    if link.one_node and shares_memory(target, op, link):
        return "node_shared"
    return "direct" if op in VERBS else "native"


def automatic(target: Operand, link: Link) -> str:
    """Return the choice of ``auto`` for a vector on these ranks."""
    on_device = target.device is not None
    direct = on_device and link.takes_devices  # then no detour through the host
    if target.kind:
        shared = link.size > 1 if link.one_node else link.ranks_per_node > 1 and not on_device
        return "node_shared" if shared and not direct else "direct"
    if target.array.dtype.kind in "iu" and target.array.itemsize < 4:
        return "native"  # the effect of overflow is MPI's choice, and must not depend on the length
    chosen = link.rows["gpu" if on_device else "cpu"].pick(target.array.nbytes)
    if chosen == BY_NETWORK:
        chosen = between_nodes(link)
        if chosen == "halving_doubling" and target.array.nbytes <= NATIVE_BYTES_PER_NODE * link.size:
            return "native"
    return "ring" if direct and chosen in ON_HOSTS else chosen


def between_nodes(link: Link) -> str:
    """Return the schedule for a long vector between ranks on different nodes; the first use is collective.

    Halving-doubling waits in 2 log2(p) steps, the ring in 2 (p - 1), which a fast network shows. It sends more unless p
    is a power of two. On a slow network the ring is as fast or faster (docs/development/measurements.md).
    """
    slow = link.nodes > 1 and link.slow
    return "ring" if slow or link.size & (link.size - 1) else "halving_doubling"


def shares_memory(target: Operand, op: str, link: Link) -> bool:
    """Return True if ``node_shared`` can run; the first call is collective."""
    covered = has_kernel(op, target.name) and (link.one_node or link.ranks_per_node > 1)
    return covered and link.node.problem is None
