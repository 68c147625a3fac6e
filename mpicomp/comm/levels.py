"""Two levels of a communicator: the memory that the ranks of a node share, and messages between the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..allreduce.node_shared import STREAM_BYTES
from .node_memory import round_up
from .transport import MpiLink

if TYPE_CHECKING:
    from .comm import Comm

LINE = 64  # bytes, the unit of slices


class NodeLevels:
    """The `mpicomp.comm.interfaces.Levels` of real jobs; its verbs are collective over this rank's node.

    Parameters
    ----------
    link : MpiLink
        Of all ranks.
    across : Comm
        The ranks at this rank's place on their nodes; freed by ``free``.
    """

    def __init__(self, link: MpiLink, across: Comm) -> None:
        self._link, self.across = link, across
        self.nodes, self.slices, self.place = link.nodes, link.owners, link.node.rank

    def slice_of(self, vector: np.ndarray) -> slice:
        """Return this rank's slice of a vector: whole cache lines; empty if some node has no rank at this place."""
        return self._link.node.slice(vector)

    def largest(self, numbers: list[int]) -> list[int]:
        """Return the largest of each of these numbers on the node."""
        every = np.array(numbers, np.int64)
        self._run("allreduce", every, every, "max")
        return every.tolist()

    def reduce_scatter(self, x: np.ndarray, total: np.ndarray, factor: float) -> None:
        """Write this rank's slice of the node's sum of ``x``, times ``factor``, into the same slice of ``total``."""
        self._run("reduce_scatter", x, total, "sum", factor)
        if self._link.node.size == 1 and factor != 1.0:  # the node's memory copies then
            total *= total.dtype.type(factor)

    def all_gather(self, x: np.ndarray) -> None:
        """Copy the slices of ``x`` of all ranks of the node to each of them."""
        self._run("all_gather", x, x, "sum")

    def gather(self, mine: np.ndarray, longest: int) -> list[np.ndarray]:
        """Return the bytes ``mine`` of the ranks with a slice, each padded; the longest has ``longest`` bytes."""
        each = round_up(max(1, longest), LINE)
        room = np.empty(each * self.slices, np.uint8)
        own = room[self.slice_of(room)]
        own[: mine.size] = mine[: own.size]
        self.all_gather(room)
        return list(room.reshape(self.slices, each))

    def free(self) -> None:
        """Free the communicator; collective over all ranks."""
        self.across.Free()

    def _run(self, verb: str, send: np.ndarray, receive: np.ndarray, op: str, factor: float = 1.0) -> None:
        with self._link.break_on_error:
            self._link.node.run(verb, send, receive, op, receive.dtype.name, receive.nbytes >= STREAM_BYTES, factor)


def levels_of(comm: Comm, link: MpiLink) -> NodeLevels | None:
    """Return the levels of ``comm``, whose private link is ``link``; None if there is one level (collective)."""
    if link.one_node or link.ranks_per_node == 1 or link.node.problem is not None:
        return None
    across = comm.beside(link.node.rank)
    if link.patient:
        across.wait_patiently()
    return NodeLevels(link, across)
