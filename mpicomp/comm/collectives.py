"""The verbs of ``Comm`` that schemes use: agreement and collectives on flat arrays, in host or device memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

import numpy as np

from .. import allreduce
from ..errors import BufferRefused, InvalidArgument
from ..ops import ops_for
from ..ops.device import Device, at_home, device_of
from ..ops.node_shared import plain_nbytes
from ..types import Array
from . import nccl
from .allgather import gather_to_all
from .allreduce_call import place
from .broadcast import broadcast
from .buffers import Vector, check_flat, check_pair, typed
from .engine import Engine, HasEngine
from .interfaces import Request
from .safety.call_log import logged
from .staging import Stage
from .transport import MpiLink, requests_of


class Verbs(HasEngine):
    """The verbs of `mpicomp.comm.interfaces.Communicator`, of which ``Comm`` consists beside mpi4py's methods."""

    # -- agreement

    def agree(self, signature: str, error: Exception | None = None, patient: bool = False) -> None:
        """Raise the same exception on every rank unless all gave the same ``signature`` and no ``error``.

        ``patient`` is for waits of milliseconds: it yields the core to other threads and processes.

        Raises
        ------
        Disagreement
            The signatures differ: the text names the ranks and their signatures.
        Exception
            Some ranks gave an error: that of the lowest, in its own class, as ``rank r: text``.
        """
        self._engine.checks.compare(signature, error, patient)

    def compare_call(self, call: str, error: Exception | None = None) -> bool:
        """Compare a caller's own collective as `Comm.Allreduce` compares; return True if it was compared.

        The first 64 calls are compared, then one in 64 and the first of each kind; ``MPICOMP_CHECK=1`` compares all,
        ``MPICOMP_CHECK=0`` none. Not for calls of ``Allreduce``, which compares itself.

        Parameters
        ----------
        call : str
            The facts that must be the same on all ranks.
        error : Exception, optional
            The reason why this rank cannot take part. It is raised here, and on all ranks if every rank compares this
            call, whatever its kind.
        """
        checks = self._engine.checks
        if not (checks.next_call() or (error is None and checks.is_new((call,)))):
            if error is not None:
                raise error
            return False
        checks.compare(call, error)
        checks.learn((call,))
        return True

    def fail_together(self, error: Exception | None) -> None:
        """Raise on every rank the ``error`` of any rank."""
        self._engine.checks.compare("", error)

    @logged
    def extremes(self, number: int) -> tuple[int, int]:
        """Return the least and the greatest ``number`` of all ranks, by log2(size) messages that `traffic` ignores."""
        return self._engine.link.extremes(number, False)

    # -- all-reduce

    @logged
    def allreduce_in_place(self, x: Array, algorithm: str = "auto", op: str = "sum", kind: str | None = None,
                           factor: float = 1.0) -> None:
        """Reduce the flat array ``x`` over all ranks, in place.

        ``kind="bfloat16"`` names the type of uint16 bits. Every element of the result is multiplied by ``factor``, in
        float32 or float64 only: 1 / size gives the mean for less than a separate pass.
        """
        self._allreduce_flat(None, x, algorithm, op, kind, factor)

    @logged
    def allreduce_from(self, sendbuf: Array, recvbuf: Array, algorithm: str = "auto", factor: float = 1.0) -> None:
        """Sum the flat array ``sendbuf`` over all ranks into ``recvbuf``; see `allreduce_in_place`."""
        self._allreduce_flat(sendbuf, recvbuf, algorithm, "sum", None, factor)

    def _allreduce_flat(self, sendbuf: Array | None, x: Array, algorithm: str, op: str, kind: str | None,
                        factor: float) -> None:
        engine = self._engine
        allreduce.check_requested(algorithm)
        source, target = flat_vectors(sendbuf, x, kind)
        if factor != 1.0 and (target.kind or target.array.dtype.kind != "f"):
            raise InvalidArgument(f"only float32 and float64 take a factor, got {target.name}")
        if algorithm == nccl.NAME:
            nccl.check_vector(target, op)
        engine.checks.verify(lambda: ", ".join([
            f"all-reduce of {target.array.size} elements {target.name}, op={op}, algorithm={algorithm}",
            *place(target.device)]))
        engine.reduction.run(source, target, op, self._schedule(target, op, algorithm), factor)

    def _schedule(self, target: Vector, op: str, algorithm: str) -> str:
        """Return the name of the schedule that runs for a requested one; the first use of a device is collective."""
        engine = self._engine
        return engine.reduction.schedule(target, op, engine.default if algorithm == "auto" else algorithm)

    @logged
    def sum_in_half(self, values: Callable[[int, int], Array], out: Array, kind: str, algorithm: str = "auto",
                    factor: float = 1.0, finite: bool = True) -> bool:
        """Sum float32 in host memory over all ranks into the flat ``out``; it travels in half precision.

        Parameters
        ----------
        values : function of (begin, end)
            This rank's values, each asked for once; they may lie in ``out``.
        kind : {"float16", "bfloat16"}
            Values are rounded to it, and so is their sum in float32.
        factor : float
            Every element of the result is multiplied by it.
        finite : bool
            Write nothing, and return False on all ranks, if an element of the sum is not finite.
        """
        engine = self._engine
        allreduce.check_requested(algorithm)
        engine.checks.verify(lambda: f"sum of {out.size} elements {out.dtype} in {kind}, algorithm={algorithm}")
        schedule = self._schedule(Vector(out, kind, None), "sum", algorithm)
        with engine.link.break_on_error:
            summing = engine.reduction.in_half(out.size, kind, out, schedule)
            all_finite = summing.add(values)
            if finite and not engine.link.extremes(int(all_finite), False)[0]:
                return False
            summing.share(out, factor)
        return True

    def wait_for(self, request: Request) -> None:
        """Wait for what is in flight and raise its error; meanwhile advance the work of `meanwhile`."""
        if isinstance(request, Messages):
            request.Wait()
        else:
            self._engine.link.wait(request)

    def wait_patiently(self, patient: bool = True) -> None:
        """From now on, yield the core to other threads in the waits of our verbs, or no longer (collective).

        Each wait may then end a millisecond late. For a communicator that a thread of its own uses. After the first
        call this is local.
        """
        engine = self._engine
        engine.link.wait_patiently(patient)
        if engine.levels is not None:
            engine.levels.across.wait_patiently(patient)

    def meanwhile(self, work: Iterator[None]) -> AbstractContextManager[None]:
        """Within the block, advance ``work`` piece by piece while our verbs wait; complete it at the end of the block.

        The work is local: it must not call MPI.
        """
        return self._engine.link.meanwhile(work)

    # -- other collectives

    @logged
    def broadcast(self, x: Array, root: int) -> None:
        """Copy the flat array ``x`` of rank ``root`` into that of every rank."""
        engine = self._engine
        link = engine.link
        if not 0 <= root < link.size:
            raise InvalidArgument(f"root must be a rank, 0 to {link.size - 1}, got {root}")
        flat = check_flat(x, "x").view(np.uint8)
        device = device_of(x)
        engine.checks.verify(lambda: ", ".join([f"broadcast of {x.size} elements {x.dtype} from rank {root}",
                                                *place(device)]))
        library = None if device is None or not flat.size else engine.reduction.nccl.of_auto(flat)
        with link.break_on_error, at_home(flat):
            if library is not None:
                sent = library.broadcast(flat, root)
                link.count_modelled(sent, 0 if link.rank == root else flat.nbytes)
            elif device is None or link.takes_devices or link.size == 1:
                broadcast(link, flat, root)
            else:
                here = link.rank == root
                stage = engine.reduction.stage(device)
                stage.run(flat, lambda host, _: broadcast(link, host, root), outward=here, back=not here)

    @logged
    def reduce_scatter(self, x: Array, out: Array, op: str = "sum", kind: str | None = None) -> None:
        """Reduce the flat array ``x`` over all ranks; rank r writes block r of equal ones into ``out``.

        For host arrays. Elements are combined in the order of the ranks; ``kind="float16"`` or ``"bfloat16"`` names the
        type of uint16 bits, which are combined in float32.
        """
        engine = self._engine
        source, target = flat_vector(x, "x", kind), flat_vector(out, "out", kind)
        if source.array.size != engine.link.size * target.array.size:
            raise BufferRefused(f"x must hold a block of out's length per rank, got {source.array.size} elements, and "
                                f"{target.array.size} on {engine.link.size} ranks")
        engine.checks.verify(lambda: f"reduce-scatter of {source.array.size} elements {source.name}, op={op}")
        engine.reduction.scatter(source, target, op)

    @property
    def one_node(self) -> bool:
        """True if all ranks share the memory of one node."""
        return self._engine.link.one_node

    @property
    def slow(self) -> bool:
        """True if the network between nodes is slow enough to cut long messages; the first use is collective."""
        return not self._engine.link.one_node and self._engine.link.slow

    @property
    def own_message(self) -> int:
        """Index of this rank's own message among the gathered messages of all ranks, which it need not read."""
        return self._engine.link.rank

    @logged
    def gather_to_all(self, x: Array, counts: list[int] | None = None, out: Array | None = None
                      ) -> tuple[Array, list[int]]:  # fmt: skip
        """Return the flat arrays ``x`` of all ranks, concatenated in rank order, and the number of elements of each.

        Without ``counts``, the ranks exchange their lengths first. A flat ``out`` of the right length is filled and
        returned, if nothing goes through staging buffers.
        """
        engine = self._engine
        link, flat, device = engine.link, check_flat(x, "x"), device_of(x)
        engine.checks.verify(lambda: ", ".join([f"gather_to_all of elements {x.dtype}, counts={counts}",
                                                *place(device)]))
        counts = counts or link.gather_lengths(flat.size)
        nbytes = [n * flat.itemsize for n in counts]
        library = None if device is None or not sum(counts) else engine.reduction.nccl.of_auto(flat)
        with link.break_on_error, at_home(flat):
            stage = None if library is not None else staging_of(engine, device)
            if stage is not None:
                return stage.gathered(flat, counts, link.rank, partial(all_gather, link, nbytes)), counts
            gathered = ops_for(flat).empty(sum(counts), flat.dtype) if out is None else check_flat(out, "out")
            if library is None:
                gather_to_all(link, flat.view(np.uint8), gathered.view(np.uint8), nbytes)
            else:
                sent = library.gather(flat.view(np.uint8), gathered.view(np.uint8), nbytes)
                link.count_modelled(sent, sum(nbytes) - flat.nbytes)
        return gathered, counts

    @logged
    def lengths_of_all(self, length: int) -> list[int]:
        """Return the ``length`` of every rank."""
        engine = self._engine
        engine.checks.verify(lambda: "lengths_of_all")
        return engine.link.gather_lengths(length)

    @logged
    def swap_lengths(self, lengths: list[int]) -> list[int]:
        """Send ``lengths[r]`` to each rank r, by MPI's own all-to-all, and return the length received from each."""
        engine = self._engine
        engine.checks.verify(lambda: "swap_lengths")
        return engine.link.swap_lengths(lengths)

    def open_device(self, like: Array) -> None:
        """Make what messages on the device of ``like`` need; collective, once before the first of them."""
        if device_of(like) is not None:
            self._engine.reduction.nccl.of_auto(like)

    @logged
    def start_messages(self, outgoing: Mapping[int, Array], incoming: Mapping[int, int], like: Array,
                       most: int | None = None) -> Messages:
        """Start to send flat arrays to ranks and to receive from ranks, all at once; not collective.

        Parameters
        ----------
        outgoing : mapping of rank -> array
            Any dtype; an empty array is not sent.
        incoming : mapping of rank -> int
            Bytes expected from each; 0 expects no message.
        like : array
            On the device of the received arrays.
        most : int, optional
            Bytes per message from and to host memory: longer arrays go in several. The same on both sides.
        """
        return self._start_messages(outgoing, incoming, like, most)

    @logged
    def send_and_receive(self, outgoing: Mapping[int, Array], incoming: Mapping[int, int], like: Array
                         ) -> dict[int, Array]:
        """Send flat arrays to ranks and receive from ranks; see `start_messages`. Not collective.

        Returns
        -------
        dict of rank -> uint8 array
        """
        messages = self._start_messages(outgoing, incoming, like)
        messages.Wait()
        return messages.received

    def _start_messages(self, outgoing: Mapping[int, Array], incoming: Mapping[int, int], like: Array,
                        most: int | None = None) -> Messages:
        engine = self._engine
        link, device = engine.link, device_of(like)
        if engine.log is not None:
            engine.log.may_be_uneven()
        outward = {rank: check_flat(x, "x").view(np.uint8) for rank, x in outgoing.items() if x.size}
        library = None if device is None else engine.reduction.nccl.of_auto(like, known=True)
        stage = None if library is not None else staging_of(engine, device)
        with link.break_on_error, at_home(like):
            if stage is not None:
                return Messages(link, stage.exchanged(outward, incoming, like, partial(send_all, link)))
            received = {rank: ops_for(like).empty(nbytes, np.uint8) for rank, nbytes in incoming.items()}
            if library is None:
                return Messages(link, received, start_all(link, outward, received, most))
            library.exchange(outward, received)
            link.count_modelled(sum(x.nbytes for x in outward.values()), sum(incoming.values()))
        return Messages(link, received)


class Messages:
    """Messages to and from some ranks that were started: see `Verbs.start_messages`.

    Attributes
    ----------
    received : dict of rank -> uint8 array
        Valid once all messages are complete.
    """

    def __init__(self, link: MpiLink, received: dict[int, Array], requests: Sequence[Request] = ()) -> None:
        self._link, self.received, self._requests = link, received, requests

    def Wait(self) -> bool:
        """Wait until all messages are complete."""
        with self._link.break_on_error:
            for request in self._requests:
                self._link.wait(request)
        return True

    def Test(self) -> bool:
        """Return True if all messages are complete."""
        return all(request.Test() for request in self._requests)


def all_gather(link: MpiLink, counts: list[int], mine: Array, whole: Array) -> None:
    """Gather bytes in host memory."""
    gather_to_all(link, mine, whole, counts)


def start_all(link: MpiLink, outgoing: Mapping[int, Array], incoming: Mapping[int, Array], most: int | None = None
              ) -> list[Request]:  # fmt: skip
    """Start to send arrays to ranks and to receive from ranks, all at once, in messages of ``most`` bytes."""
    started = [link.irecv(x, rank, most) for rank, x in incoming.items() if x.size]
    started += [link.isend(x, rank, most) for rank, x in outgoing.items()]
    return [one for request in started for one in requests_of(request)]


def send_all(link: MpiLink, outgoing: Mapping[int, Array], incoming: Mapping[int, Array]) -> None:
    """Send arrays to ranks and receive from ranks, all at once."""
    for request in start_all(link, outgoing, incoming):
        link.wait(request)


def staging_of(engine: Engine, device: Device | None) -> Stage | None:
    """Return the staging buffers of a device from which MPI does not read; None if it may read the array."""
    return None if device is None or engine.link.takes_devices else engine.reduction.stage(device)


def flat_vectors(sendbuf: Array | None, x: Array, kind: str | None) -> tuple[Vector | None, Vector]:
    """Return the send buffer (None: in place) and ``x`` as vectors; refuse two that do not belong together."""
    plain = kind is None and plain_nbytes(sendbuf, x) >= 0  # usual arrays, known in a tenth of the time
    if plain and x.ndim == 1 and (sendbuf is None or sendbuf.ndim == 1):
        return None if sendbuf is None else Vector(sendbuf, None, None), Vector(x, None, None)
    target = flat_vector(x, "x", kind)
    if sendbuf is None:
        return None, target
    source = flat_vector(sendbuf, "sendbuf", kind)
    check_pair(source, target)
    return source, target


def flat_vector(x: Array, name: str, kind: str | None) -> Vector:
    """Return a flat array as a vector; ``kind="bfloat16"`` names the type of uint16 bits."""
    flat, device = check_flat(x, name), device_of(x)
    found = Vector(flat, kind, device) if kind else typed(flat, device)
    if found is None:
        raise BufferRefused(f"{name} must hold float16, bfloat16, float32, float64 or integers, got {x.dtype}")
    return found
