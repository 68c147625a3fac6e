"""Two levels of a communicator: the memory that the ranks of a node share, and messages between the nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from ..allreduce.node_shared import STREAM_BYTES
from ..ops import ops_for
from ..ops.device import at_home, device_of
from ..types import Array, dtype_name
from .interfaces import Communicator
from .nccl import Communicators, Nccl
from .node_memory import round_up
from .transport import MpiLink

LINE = 64  # bytes, the unit of slices
HEAD = 8  # bytes of the length in front of a gathered array


class Across(Communicator, Protocol):
    """A ``Comm`` of the ranks at one place on their nodes."""

    def wait_patiently(self, patient: bool = ...) -> None: ...

    def Free(self) -> None: ...


class NodeLevels:
    """The `mpicomp.comm.interfaces.Levels` of real jobs; its verbs are collective over this rank's node.

    Device arrays go by NCCL if all ranks of this node can, and are not counted; else through the node's memory.

    Parameters
    ----------
    link : MpiLink
        Of all ranks.
    across : Across
        The ranks at this rank's place on their nodes; freed by ``free``.
    """

    def __init__(self, link: MpiLink, across: Across) -> None:
        self._link, self.across = link, across
        self.nodes, self.slices, self.place = link.nodes, link.owners, link.node.rank
        self._nccl = Communicators(link.node.comm, link.settings.prefers_nccl and not link.reproducible)

    def slice_of(self, vector: Array) -> slice:
        """Return this rank's slice of a vector: whole cache lines; empty if some node has no rank at this place."""
        return self._link.node.slice(vector)

    def largest(self, numbers: list[int]) -> list[int]:
        """Return the largest of each of these numbers on the node."""
        every = np.array(numbers, np.int64)
        self._run("allreduce", every, every, "max")
        return every.tolist()

    def reduce_scatter(self, x: Array, total: Array, factor: float) -> None:
        """Write this rank's slice of the node's sum of ``x``, times ``factor``, into the same slice of ``total``."""
        own, library = self.slice_of(total), self._library(x, x.size)
        if library is not None:
            counts = self._counts(own.stop - own.start)
            with self._link.break_on_error, at_home(x):
                library.reduce_scatter(x, total, counts)
        elif device_of(x) is None:
            self._run("reduce_scatter", x, total, "sum", factor)
        else:
            with self._link.break_on_error:  # also if there is no memory for the copy
                host = ops_for(x).to_host(x)
                self._run("reduce_scatter", host, host, "sum", factor)
            total[own] = ops_for(x).from_host(host[own])
        if (library is not None or self._link.node.size == 1) and factor != 1.0:  # else the sum has the factor
            ops_for(total).scale(total[own], factor)

    def all_gather(self, x: Array) -> None:
        """Copy the slices of ``x`` of all ranks of the node to each of them."""
        library = self._library(x, x.size)
        if library is not None:
            self._join(library, x[self.slice_of(x)], x)
        elif device_of(x) is None:
            self._run("all_gather", x, x, "sum")
        else:
            with self._link.break_on_error:
                host = ops_for(x).to_host(x)
                self._run("all_gather", host, host, "sum")
            x[:] = ops_for(x).from_host(host)

    def gather(self, x: Array, longest: int) -> Array:
        """Return the arrays ``x`` of the ranks with a slice, concatenated; the longest has ``longest`` elements."""
        library = self._library(x, longest)
        if library is not None:
            return self._join(library, x)
        with self._link.break_on_error:
            host = x if device_of(x) is None else ops_for(x).to_host(x)
            each = round_up(HEAD + longest * host.itemsize, LINE)
            room = np.empty(each * self.slices, np.uint8)
            own = room[self.slice_of(room)]
            if own.size:
                own[:HEAD].view(np.int64)[0] = host.size
                own[HEAD : HEAD + host.nbytes] = host.view(np.uint8)
            self._run("all_gather", room, room, "sum")
        rows = room.reshape(self.slices, each)
        sizes = (int(row[:HEAD].view(np.int64)[0]) * host.itemsize for row in rows)
        joint = np.concatenate([row[HEAD : HEAD + size] for row, size in zip(rows, sizes, strict=True)])
        return joint.view(host.dtype) if host is x else ops_for(x).from_host(joint.view(host.dtype))

    def free(self) -> None:
        """Free the communicator; collective over all ranks."""
        self.across.Free()

    def _library(self, x: Array, n: int) -> Nccl | None:
        """Return NCCL's communicator of the node for ``x``; None if ranks cannot, or there are no elements (``n``)."""
        return None if n == 0 or device_of(x) is None else self._nccl.of_auto(x)

    def _counts(self, n: int) -> list[int]:
        """Return the number ``n`` of each rank of the node."""
        return self.largest([n if place == self.place else 0 for place in range(self._link.node.size)])

    def _join(self, library: Nccl, x: Array, joint: Array | None = None) -> Array:
        """Return the arrays ``x`` of the node's ranks, empty without a slice, concatenated in ``joint``."""
        counts = self._counts(x.nbytes)
        with self._link.break_on_error, at_home(x):
            if joint is None:
                joint = ops_for(x).empty(sum(counts) // x.itemsize, x.dtype)
            library.gather(x.view(np.uint8), joint.view(np.uint8), counts)
        return joint

    def _run(self, verb: str, send: np.ndarray, receive: np.ndarray, op: str, factor: float = 1.0) -> None:
        with self._link.break_on_error:
            self._link.node.run(verb, send, receive, op, dtype_name(receive.dtype), receive.nbytes >= STREAM_BYTES,
                                factor)


def levels_of(link: MpiLink, beside: Callable[[int], Across]) -> NodeLevels | None:
    """Return the levels of the ranks of ``link``; None if there is one level (collective).

    ``beside`` returns a communicator of the ranks that give it the same number.
    """
    if link.one_node or link.ranks_per_node == 1 or link.node.problem is not None:
        return None
    across = beside(link.node.rank)
    if link.patient:
        across.wait_patiently()
    return NodeLevels(link, across)
