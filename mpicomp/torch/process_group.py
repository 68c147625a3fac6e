"""``torch.distributed``'s process group over a ``Comm``: which collective runs on which tensors, and in what order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..comm.comm import Comm
from ..comm.job import Intracomm
from ..comm.nonblocking import threads_allowed
from ..comm.point_to_point import PointToPoint
from ..errors import InvalidArgument
from . import tensor_collectives as collectives
from .flat import finished
from .tensor_collectives import Tensors
from .works import Joined, MessageWork, Turns, Work, untraced

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

NAME = "mpicomp"
ProcessGroup: Any = dist.ProcessGroup  # its methods have overloads, and other names in other versions


@untraced
class MpicompGroup(ProcessGroup):  # type: ignore[misc]
    """The ranks of ``comm`` as a process group (collective).

    Every method returns a ``Work``. Calls run in the order in which they were started, which must be the same on every
    rank of the group; messages between two ranks have no part in that order. Methods take what PyTorch's own take: an
    options object, or a root, a ``ReduceOp`` and a timeout, which the library's watchdog replaces.

    Parameters
    ----------
    comm : MPI.Intracomm
        Duplicated.
    store : torch.distributed.Store
        PyTorch's own, for code that asks the group for it.

    Attributes
    ----------
    comm : Comm
        The group's communicator. Pass it to ``ddp_hook`` or `DistributedOptimizer`, which duplicate it.
    """

    def __init__(self, comm: Intracomm, store: Store) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size())
        self.comm = Comm(comm)
        self._store = store
        self.comm.wait_patiently()  # the first time, the ranks measure the network
        self.comm.wait_patiently(False)
        self._turns = Turns(self.comm, threads_allowed(self.comm))
        self._messages = PointToPoint(self.comm)
        self._joined: list[Work] | None = None  # works since _start_coalescing
        self._names = "", ""

    # -- reductions

    def allreduce(self, tensors: Any, *given: Any, **named: Any) -> Work:
        """Reduce each tensor in place."""
        options, tensors = Options(given, named), listed(tensors)
        return self._start(partial(collectives.all_reduce, self.comm, tensors, options.op), tensors, options)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, *given: Any, **named: Any) -> Work:
        """Reduce a tensor in place on the root."""
        options, tensor = Options(given, named), one_of(tensors)
        return self._start(partial(collectives.reduce, self.comm, tensor, options.op, options.root), [tensor], options)

    def reduce_scatter(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> Work:
        """Reduce the tensors of a list; rank r gets tensor r."""
        options, output, tensors = Options(given, named), one_of(outputs), list_of(inputs)
        return self._start(partial(collectives.reduce_scatter, self.comm, output, tensors, options.op), [output],
                           options)

    def reduce_scatter_single(self, output: Any, tensor: Any, *given: Any, **named: Any) -> Work:
        """Reduce a tensor; rank r gets block r of equal ones."""
        return self.reduce_scatter_single_coalesced([output], [tensor], *given, **named)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> Work:
        """Reduce each tensor of a list; rank r gets block r of equal ones."""
        options = Options(given, named)

        def run() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                collectives.reduce_scatter_single(self.comm, output, tensor, options.op)

        return self._start(run, outputs, options)

    # -- movements

    def broadcast(self, tensors: Any, *given: Any, **named: Any) -> Work:
        """Copy the root's tensors to all ranks."""
        options, tensors = Options(given, named), listed(tensors)
        return self._start(partial(collectives.broadcast, self.comm, tensors, options.root), tensors, options)

    def allgather(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> Work:
        """Gather the tensors of all ranks in a list."""
        return self.allgather_coalesced([[one] for one in list_of(outputs)], [one_of(inputs)], *given, **named)

    def allgather_coalesced(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> Work:
        """Gather each tensor of a list; ``outputs[r]`` gets those of rank r."""
        def run() -> None:
            of_inputs = collectives.checked(self.comm, lambda: transposed(outputs, len(inputs)))
            for of_ranks, tensor in zip(of_inputs, inputs, strict=True):
                collectives.all_gather(self.comm, of_ranks, tensor)

        return self._start(run, [one for lists in outputs for one in lists], Options(given, named))

    def all_gather_single(self, output: Any, tensor: Any, *given: Any, **named: Any) -> Work:
        """Gather equal tensors one behind another in ``output``."""
        return self.all_gather_single_coalesced([output], [tensor], *given, **named)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> Work:
        """Gather each tensor of a list one behind another in the output at its place."""
        def run() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                collectives.all_gather_single(self.comm, output, tensor)

        return self._start(run, outputs, Options(given, named))

    def gather(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> Work:
        """Gather the tensors of all ranks in a list on the root."""
        options, mine, tensor = Options(given, named), list_of(outputs), one_of(inputs)
        return self._start(partial(collectives.gather, self.comm, mine, tensor, options.root), mine, options, [tensor])

    def scatter(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> Work:
        """Copy tensor r of the root's list to rank r."""
        options, output = Options(given, named), one_of(outputs)
        return self._start(partial(collectives.scatter, self.comm, output, list_of(inputs), options.root), [output],
                           options)

    def alltoall(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> Work:
        """Send tensor r of a list to each rank r."""
        return self._start(partial(collectives.all_to_all, self.comm, outputs, inputs), outputs,
                           Options(given, named))

    def all_to_all_single(self, output: Any, tensor: Any, output_splits: Any, input_splits: Any, *given: Any,
                          **named: Any) -> Work:
        """Send part r of a tensor's first dimension to each rank r."""
        run = partial(collectives.all_to_all_single, self.comm, output, tensor, output_splits, input_splits)
        return self._start(run, [output], Options(given, named))

    def barrier(self, *given: Any, **named: Any) -> Work:
        """Wait for all ranks."""
        return self._start(partial(collectives.barrier, self.comm), [], Options(given, named))

    # names of PyTorch before 2.13
    _allgather_base, allgather_into_tensor_coalesced = all_gather_single, all_gather_single_coalesced
    _reduce_scatter_base, reduce_scatter_tensor_coalesced = reduce_scatter_single, reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # -- messages between two ranks

    def send(self, tensors: Any, rank: int, tag: int = 0) -> Work:
        """Start to send a tensor to a rank; the ``Work`` is complete when the tensor may change."""
        tensor = self._checked(tensors, rank)
        memory = tensor.cpu() if self._staged(tensor) else tensor
        message = self._messages.send(collectives.as_bytes(memory), rank, tag)
        return self._noted(MessageWork(message, [], self._turns.threaded))

    def recv(self, tensors: Any, rank: int, tag: int = 0) -> Work:
        """Start to receive a tensor from a rank."""
        return self._receive(self._checked(tensors, rank), rank, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Start to receive a tensor from any rank, which the complete ``Work`` names."""
        return self._receive(self._checked(tensors, 0), None, tag)

    def _receive(self, tensor: torch.Tensor, rank: int | None, tag: int) -> Work:
        collectives.check_writable(tensor)
        memory = collectives.landing(tensor, torch.device("cpu") if self._staged(tensor) else None)

        def land() -> None:
            if memory is not tensor:
                tensor.copy_(memory)
                finished(tensor)  # its readers may be on another stream

        if memory is not tensor:
            finished(tensor)  # the copy may be on another stream than the caller's
        message = self._messages.recv(collectives.as_bytes(memory), rank, tag)
        return self._noted(MessageWork(message, [tensor], self._turns.threaded, land))

    def _checked(self, tensors: Any, rank: int) -> torch.Tensor:
        self._check_open()
        tensor = one_of(tensors).detach()
        collectives.check_rank("the other rank", rank, self.comm.size)
        collectives.check_dense(tensor)
        return tensor

    def _staged(self, tensor: torch.Tensor) -> bool:
        """Return True if MPI does not read this tensor's memory."""
        return tensor.is_cuda and self.comm.gpu_path[0] != "direct"

    # -- order

    def _start(self, function: Callable[[], object], outputs: Tensors, options: Options, inputs: Tensors = ()) -> Work:
        """Start a call behind those that were started before."""
        self._check_open()
        return self._noted(self._turns.start(function, outputs, options.waits, inputs))

    def _check_open(self) -> None:
        if not self.comm:
            raise InvalidArgument("this process group is destroyed: use a group that exists, or make one by "
                                  "init_process_group or new_group")

    def _noted(self, work: Work) -> Work:
        if self._joined is not None:
            self._joined.append(work)
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        """Collect the works of the calls that follow."""
        self._joined = []

    def _end_coalescing(self, device: torch.device) -> Work:
        """Return the works of the calls since ``_start_coalescing`` as one."""
        works, self._joined = self._joined or [], None
        return Joined(works)

    # -- facts that PyTorch asks for, under its names

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return NAME

    def getGroupName(self) -> str:
        """Return PyTorch's name of this group, by which compiled code finds it."""
        return self._names[0]

    def setGroupName(self, name: str) -> None:
        """Set PyTorch's name of this group."""
        self._names = name, self._names[1]

    def getGroupDesc(self) -> str:
        """Return the description that ``new_group`` was given."""
        return self._names[1]

    def setGroupDesc(self, description: str) -> None:
        """Set the description."""
        self._names = self._names[0], description

    name = _get_backend_name = getBackendName
    supports_splitting = supports_coalescing = supports_time_estimate = False

    def get_group_store(self) -> Store:
        """Return PyTorch's store of the group."""
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> MpicompGroup:
        """Return this group, which has no other backends."""
        return self

    def shutdown(self) -> None:
        """End the thread after all started calls, and free the communicators (collective)."""
        self._turns.stop()
        self._messages.free()
        self.comm.Free()


class Options:
    """The arguments of a collective beside its tensors: PyTorch's options object, or a root and an operation.

    Parameters
    ----------
    given, named
        Positional arguments, and those with names.
    """

    def __init__(self, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._given = (*given, *named.values()) if named else given

    @property
    def waits(self) -> bool:
        """True if the caller waits for the result at once."""
        return any(getattr(one, "asyncOp", None) is False for one in self._given)

    @property
    def op(self) -> str:
        """Name of the ``ReduceOp``."""
        for one in self._given:
            op = getattr(one, "reduceOp", one)
            if isinstance(op, OPERATIONS):
                return operation(op)
        return "SUM"

    @property
    def root(self) -> int:
        """The rank that the call names."""
        for one in self._given:
            root = getattr(one, "rootRank", one)
            if isinstance(root, int):
                return root
        return 0


OPERATIONS = (dist.ReduceOp, dist.ReduceOp.RedOpType)


def operation(op: Any) -> str:
    """Return the name of a ``ReduceOp``, or of one of its values."""
    return str(getattr(op, "op", op).name)


def listed(tensors: Any) -> list[torch.Tensor]:
    """Return a list of tensors; of one tensor, too."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def one_of(tensors: Any) -> torch.Tensor:
    """Return the only tensor of a list."""
    first, *others = listed(tensors)
    if others:
        raise InvalidArgument(f"backend mpicomp takes one tensor per rank, got {1 + len(others)}: call it for each")
    return first


def list_of(tensors: Any) -> list[torch.Tensor]:
    """Return the only list of a list of lists; an empty one if there is none, and a list of tensors as it is."""
    if not tensors or isinstance(tensors[0], torch.Tensor):
        return list(tensors)
    if len(tensors) > 1:
        raise InvalidArgument(f"backend mpicomp takes one list of tensors per rank, got {len(tensors)}: call it for "
                              "each")
    return list(tensors[0])


def transposed(lists: Any, count: int) -> list[list[torch.Tensor]]:
    """Return each rank's list of ``count`` tensors as ``count`` lists with a tensor per rank."""
    for one in lists:
        if len(one) != count:
            raise InvalidArgument(f"each list of output tensors must have one per input, {count}, got {len(one)}")
    return [[one[i] for one in lists] for i in range(count)]
