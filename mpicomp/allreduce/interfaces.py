"""Protocols that dense schedules are written against: link, node memory, array operations, scratch memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from ..types import Array
from .table import Row

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..ops.device import Device


class Operand(Protocol):
    """The vector that an all-reduce writes."""

    @property
    def array(self) -> Array: ...

    @property
    def kind(self) -> str | None:
        """``float16`` or ``bfloat16`` if ``array`` holds half precision as uint16 bits."""

    @property
    def name(self) -> str:
        """Name of the element type."""

    @property
    def device(self) -> Device | None:
        """None in host memory."""


class Arithmetic(Protocol):
    """The array operations that schedules call, beside those in `VERBS`; see `mpicomp.ops`."""

    def scale(self, x: Array, factor: float, /) -> None: ...

    def widen(self, out: Array, bits: Array, kind: str, factor: float = 1.0, /) -> None: ...

    def narrow(self, bits: Array, x: Array, kind: str, /) -> None: ...

    def add_widened(self, total: Array, bits: Array, kind: str, /) -> None: ...

    def count_nonfinite(self, x: Array, /) -> tuple[int, int]: ...


class Scratch(Protocol):
    """Work memory that is kept from call to call."""

    def __call__(self, n: int, dtype: npt.DTypeLike = ..., slot: str = "") -> Array:
        """Return an array of at least ``n`` elements, by default of the vector's dtype; one array per ``slot``."""


class NodeMemory(Protocol):
    """Memory that the ranks of a node share."""

    @property
    def problem(self) -> str | None:
        """The reason why there is no shared memory; None if there is, on all nodes alike."""

    def run(self, verb: str, send: Array, receive: Array, op: str, kind: str, stream: bool = False,
            factor: float = 1.0) -> None:
        """Run ``allreduce``, ``reduce_scatter`` or ``all_gather`` among the ranks of this node.

        Parameters
        ----------
        kind : str
            Name of the element type.
        stream : bool
            Write results past the caches.
        factor : float
            The reduced values are multiplied by it.
        """

    def slice(self, array: Array) -> slice:
        """Return this rank's slice of ``array``, which is empty if the rank owns none."""


class Link(Protocol):
    """Ranks that run a schedule, and messages between them: MPI's, or those of a simulation.

    Both sides know the length of every message; an empty one is not sent.
    """

    rank: int
    size: int
    nodes: int
    one_node: bool
    ranks_per_node: int  # on the fullest node
    reproducible: bool  # combine elements in the order of the ranks
    takes_devices: bool  # MPI reads and writes device memory
    rows: dict[str, Row]  # choices of ``auto`` by device

    @property
    def slow(self) -> bool:
        """True if the network between nodes is slow enough to cut long messages; the first use is collective."""

    @property
    def node(self) -> NodeMemory:
        """Memory of this rank's node; the first use is collective."""

    @property
    def across(self) -> Link | None:
        """Link to the ranks of the other nodes at this rank's place on the node; the first use is collective.

        None if some node has no rank at this place.
        """

    def isend(self, array: Array, dest: int) -> object:
        """Start to send ``array``, which must not change until the returned request is complete."""

    def irecv(self, array: Array, source: int) -> object:
        """Start to receive into ``array``; return a request."""

    def wait(self, request: object) -> None:
        """Wait for a request of `isend` or `irecv`."""

    def sendrecv(self, outgoing: Array, dest: int, incoming: Array, source: int) -> None:
        """Send and receive at once; wait for both."""

    def meanwhile(self, work: Iterator[None]) -> AbstractContextManager[None]:
        """Within the block, advance ``work`` while this rank waits; complete it at the end of the block."""

    def native_allreduce(self, work: Array, op: str, source: Array | None = None) -> None:
        """Run MPI's own all-reduce on ``source``, or on ``work`` in place."""
