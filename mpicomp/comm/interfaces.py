"""Protocol of the communicator that schemes and reducers use, and the values that it returns; imports no MPI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from operator import add, sub
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..types import Array

if TYPE_CHECKING:
    from .safety.call_log import CallLog


class Traffic(NamedTuple):
    """Bytes and messages of calls that this rank has exchanged since its ``Comm`` was made.

    The messages by which a communicator measures its network, once, are not counted.

    Attributes
    ----------
    bytes_sent, bytes_received : int
        Bytes handed to MPI and taken from it.
    messages : int
        Point-to-point messages sent.
    modelled : int
        Part of ``bytes_sent``, and of ``bytes_received``, that went through MPI's own collectives. Their schedules
        cannot be observed, so these bytes follow from a formula.
    bytes_shared : int
        Bytes that this rank left in the shared memory of its node for other ranks (``node_shared``); not included in
        the other counts.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    messages: int = 0
    modelled: int = 0
    bytes_shared: int = 0

    def __add__(self, other: Traffic) -> Traffic:  # type: ignore[override]  # a tuple's own would append
        return Traffic(*map(add, self, other))

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(*map(sub, self, earlier))


class Request(Protocol):
    """A started all-reduce, or started messages. Their buffers must not be used until it is complete."""

    def Wait(self) -> bool:
        """Return True when the result is there; raise the error of the call."""

    def Test(self) -> bool:
        """Return True if the result is there; raise the error of the call."""


class Messages(Request, Protocol):
    """Started messages to and from some ranks."""

    @property
    def received(self) -> dict[int, Array]:
        """The uint8 arrays that were received, by rank, once the messages are complete."""


class Recorder(Protocol):
    """The part of `mpicomp.trace.Recorder` that a communicator calls."""

    doing: tuple[str, int, int] | None  # kind, step and begin of the event that this rank is in

    def now(self) -> int:
        """Return the recorder's time in nanoseconds."""

    def event(
        self, kind: str, t_start: int, t_end: int | None = None, *, step: int = -1, algo: str = "", scheme: str = "",
        dtype: str = "", op: str = "", nbytes_dense: int = 0, nbytes_sent: int = 0, nbytes_recv: int = 0,
        nelem: int = 0, flags: int = 0,
    ) -> None:  # fmt: skip
        """Record an event."""

    def metric(self, name: str, step: int, value: float) -> None:
        """Record a value; step -1 is that of the enclosing step."""

    def region(self, kind: str) -> AbstractContextManager[object]:
        """Record the ``with`` block as one event."""


class Levels(Protocol):
    """The ranks of each node, which share memory, and the ranks at one place on all nodes, which share a slice.

    Verbs are collective over this rank's node.

    Attributes
    ----------
    across : Communicator
        The ranks at this rank's place on their nodes, in the order of the nodes.
    nodes : int
    slices : int
        Ranks of a node that own a slice: the fewest ranks that any node has.
    place : int
        This rank among those of its node; it owns a slice if that is below ``slices``.
    """

    @property
    def across(self) -> Communicator: ...

    @property
    def nodes(self) -> int: ...

    @property
    def slices(self) -> int: ...

    @property
    def place(self) -> int: ...

    def slice_of(self, vector: Array) -> slice:
        """Return this rank's slice of a vector, which is empty if the rank owns none; local."""

    def largest(self, numbers: list[int]) -> list[int]:
        """Return the largest of each of these numbers on the node."""

    def reduce_scatter(self, x: Array, total: Array, factor: float) -> None:
        """Write this rank's slice of the node's sum of ``x``, times ``factor``, into the same slice of ``total``."""

    def all_gather(self, x: Array) -> None:
        """Copy the slices of ``x`` of all ranks of the node to each of them."""

    def gather(self, x: Array, longest: int) -> Array:
        """Return the arrays ``x`` of the ranks with a slice, concatenated; the longest has ``longest`` elements."""


class Communicator(Protocol):
    """Ranks that run a scheme together: `mpicomp.Comm`, or a rank of `mpicomp.simulate`.

    All verbs are collective unless they say otherwise. Arrays are flat and contiguous, in host or device memory.
    """

    @property
    def rank(self) -> int:
        """This rank, from 0; local."""

    @property
    def size(self) -> int:
        """The number of ranks; local."""

    @property
    def one_node(self) -> bool:
        """True if all ranks share the memory of one node; local."""

    @property
    def slow(self) -> bool:
        """True if the network between nodes is slow enough to cut long messages; the first use is collective."""

    @property
    def own_message(self) -> int:
        """Index of this rank's own message among the gathered messages of all ranks, which it need not read; local."""

    @property
    def traffic(self) -> Traffic:
        """Bytes and messages that this rank has exchanged so far; local."""

    @property
    def log(self) -> CallLog | None:
        """Log of this rank's collective calls; None if neither a timeout nor fault injection is configured."""

    @property
    def reproducible(self) -> bool:
        """True if all-reduces give the same bits with every schedule; local."""

    @property
    def flies(self) -> bool:
        """True if several all-reduces in flight are faster than one; the first use is collective."""

    @property
    def levels(self) -> Levels | None:
        """The two levels of the ranks; None on one node, without shared memory, or if no node has several ranks.

        The first use is collective.
        """

    def count_reducer(self) -> int:
        """Count one more reducer on this communicator and return their number; local."""

    # -- agreement

    def agree(self, signature: str, error: Exception | None = None, patient: bool = False) -> None:
        """Raise the same exception on every rank unless all gave the same ``signature`` and no ``error``.

        ``patient`` yields the core to other threads and processes, for waits of milliseconds.
        """

    def fail_together(self, error: Exception | None) -> None:
        """Raise on every rank the ``error`` of any rank."""

    def extremes(self, number: int) -> tuple[int, int]:
        """Return the least and the greatest ``number`` of all ranks."""

    # -- all-reduce

    def allreduce_in_place(self, x: Array, algorithm: str = "auto", op: str = "sum", kind: str | None = None,
                           factor: float = 1.0) -> None:
        """Reduce the array ``x`` over all ranks by ``op``, in place, and multiply the result by ``factor``.

        ``kind`` is ``float16`` or ``bfloat16`` if ``x`` holds half precision as uint16 bits.
        """

    def allreduce_from(self, sendbuf: Array, recvbuf: Array, algorithm: str = "auto", factor: float = 1.0) -> None:
        """Sum the array ``sendbuf`` over all ranks into ``recvbuf``, times ``factor``."""

    def start_allreduce(self, x: Array, algorithm: str = "auto", kind: str | None = None, factor: float = 1.0,
                        source: Array | None = None) -> Request:
        """Start a sum over all ranks into ``x``: of ``x`` itself, or of ``source``, which has no ``kind``.

        All-reduces run in the order in which they were started.
        """

    def sum_in_half(self, values: Callable[[int, int], Array], out: Array, kind: str, algorithm: str = "auto",
                    factor: float = 1.0, finite: bool = True) -> bool:
        """Sum float32 in host memory over all ranks into ``out``, times ``factor``; it travels in half precision.

        ``values`` gives this rank's from an element to another, each once. If ``finite``, a sum that is not finite on
        all ranks is not written: the result is False.
        """

    def wait_for(self, request: Request) -> None:
        """Wait for what was started and advance the work of `meanwhile`; local."""

    def meanwhile(self, work: Iterator[None]) -> AbstractContextManager[None]:
        """Within the block, advance ``work`` piece by piece while verbs wait; complete it at the end of the block.

        The work is local: it must not call MPI.
        """

    # -- other collectives

    def broadcast(self, x: Array, root: int) -> None:
        """Copy the array ``x`` of rank ``root`` into that of every rank."""

    def gather_to_all(self, x: Array, counts: list[int] | None = None) -> tuple[Array, list[int]]:
        """Return the arrays ``x`` of all ranks, concatenated in rank order, and the number of elements of each.

        Without ``counts``, the ranks exchange their lengths first.
        """

    def lengths_of_all(self, length: int) -> list[int]:
        """Return the ``length`` of every rank."""

    def swap_lengths(self, lengths: list[int]) -> list[int]:
        """Send ``lengths[r]`` to each rank r and return the length received from each rank."""

    def open_device(self, like: Array) -> None:
        """Make what messages on the device of ``like`` need; collective, once before the first of them."""

    def start_messages(self, outgoing: Mapping[int, Array], incoming: Mapping[int, int], like: Array,
                       most: int | None = None) -> Messages:
        """Start to send arrays to ranks and to receive so many bytes from ranks; not collective.

        Empty messages are not sent. The received arrays are uint8 and on the device of ``like``. From host memory
        arrays of more than ``most`` bytes go in several messages.
        """

    def send_and_receive(self, outgoing: Mapping[int, Array], incoming: Mapping[int, int], like: Array
                         ) -> dict[int, Array]:
        """Run `start_messages`, wait for them, and return what was received; not collective."""
