"""Collectives on tensors over a ``Comm``, which PyTorch's process groups consist of; each returns when it is complete.

Arguments are checked on each rank, and compared over the ranks as ``Comm.Allreduce`` compares its own: an error of one
rank is raised on all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from ..comm.comm import Comm
from ..comm.mpi_types import IN_PLACE, MPI_OPS
from ..errors import BufferRefused, Disagreement, InvalidArgument
from ..ops.device import ready
from ..types import Array
from .flat import as_array, finished

Tensors = Sequence[torch.Tensor]
R = TypeVar("R")
HALVES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
INTEGERS = {torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64}
UNSIGNED = {getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)}  # not in 2.2
INTEGERS |= UNSIGNED
FLOATS = {torch.float32, torch.float64, *HALVES}
REAL = FLOATS | INTEGERS
# PyTorch's reductions -> names of ours; AVG is a sum, and then a division
OF_FLOATS = {"SUM": "sum", "AVG": "sum", "PRODUCT": "prod", "MIN": "min", "MAX": "max"}
OF_INTEGERS = {**OF_FLOATS, "BAND": "band", "BOR": "bor", "BXOR": "bxor"}
PLAIN_OPS = ("SUM", "PRODUCT", "MIN", "MAX")  # of all real numbers, without further steps
OF_COMPLEX = {"SUM": "sum", "AVG": "sum"}
# Of booleans, which are bytes of 0 and 1: a sum is true if any is, a product if all are
OF_BOOLEANS = {"SUM": "max", "PRODUCT": "min", "MIN": "min", "MAX": "max", "BAND": "band", "BOR": "bor", "BXOR": "bxor"}


# -- reductions


def all_reduce(comm: Comm, tensors: Tensors, op: str) -> None:
    """Reduce each tensor in place; half precision is combined in float32."""
    if len(tensors) == 1 and is_plain(tensors[0]) and op in PLAIN_OPS:
        reduce_flat(comm, tensors[0].detach(), OF_FLOATS[op])  # the usual call, for a third of the time
        return
    targets = checked(comm, lambda: [Target(tensor, op) for tensor in tensors])
    if len(targets) == 1 and not targets[0].is_mapped:
        with targets[0].flat() as flat:
            reduce_flat(comm, flat, targets[0].op)
        return
    comm.compare_call(f"all_reduce of {counted(tensors)}, op={op}")
    for target in targets:
        target.reduce(comm)


def reduce(comm: Comm, tensor: torch.Tensor, op: str, root: int) -> None:
    """Reduce a tensor in place on rank ``root``; it stays as it is on the others."""
    def target() -> Target:
        check_rank("root", root, comm.size)
        return Target(tensor if comm.rank == root else tensor.clone(), op)

    reduced = checked(comm, target)
    comm.compare_call(f"reduce of {counted([tensor])}, op={op}, on rank {root}")
    reduced.reduce(comm)


def reduce_scatter(comm: Comm, output: torch.Tensor, inputs: Tensors, op: str) -> None:
    """Reduce the tensors over all ranks; rank r gets tensor r."""
    def joined() -> torch.Tensor:
        check_list("input tensors", inputs, comm.size)
        check_same("the output and this rank's input", output, inputs[comm.rank])
        for one in inputs:
            check_same("output and inputs", output, one, shapes=False)
        return torch.cat([one.detach().reshape(-1) for one in inputs])

    _reduce_scatter(comm, output, checked(comm, joined), [one.numel() for one in inputs], op)


def reduce_scatter_single(comm: Comm, output: torch.Tensor, tensor: torch.Tensor, op: str) -> None:
    """Reduce a tensor over all ranks; rank r gets block r of equal ones."""
    def check() -> None:
        check_same("output and input", output, tensor, shapes=False)
        if tensor.numel() != comm.size * output.numel():
            raise InvalidArgument(f"the input of reduce_scatter must have {comm.size} times the output's elements, got "
                                  f"{tuple(tensor.shape)} for {tuple(output.shape)}")

    checked(comm, check)
    _reduce_scatter(comm, output, tensor, [output.numel()] * comm.size, op)


def _reduce_scatter(comm: Comm, output: torch.Tensor, whole: torch.Tensor, counts: list[int], op: str) -> None:
    target, source = checked(comm, lambda: (Target(output, op), Target(in_order(whole), op)))
    work, unequal = source.tensor.view(-1), len(set(counts)) > 1
    blocks = f", in blocks of {counts}" if unequal else ""
    comm.compare_call(f"reduce_scatter of {counted([whole])}, op={op}{blocks}")
    with target.flat() as flat:
        if work.is_cuda or unequal:  # the verb takes equal blocks in host memory
            work = work.clone()
            reduce_compared(comm, work, target.op)
            begin = sum(counts[: comm.rank]) * work.numel() // max(1, sum(counts))  # a complex number is a pair
            flat.copy_(work[begin : begin + flat.numel()])
        else:
            comm.reduce_scatter(bits(work), bits(flat), target.op, HALVES.get(work.dtype))
        target.divide(flat, comm.size)


class Target:
    """A tensor to reduce.

    Attributes
    ----------
    tensor : tensor
        The same memory, in a type that can be reduced: complex numbers are pairs, booleans are bytes. If the tensor
        is conjugated, a copy.
    op : str
        Our name of the operation.
    is_mapped : bool
        The dtype or the operation is not the caller's, so ``Comm.Allreduce`` cannot compare the caller's.

    Raises
    ------
    BufferRefused, InvalidArgument
        The operation does not go with the dtype, or the tensor is not dense, or cannot be written.
    """

    def __init__(self, tensor: torch.Tensor, op: str) -> None:
        check_writable(tensor)
        self.tensor = self._whole = tensor.detach()
        self._divides = op == "AVG"
        dtype, allowed = tensor.dtype, OF_FLOATS
        if dtype == torch.bool:
            self.tensor, allowed = self.tensor.view(torch.uint8), OF_BOOLEANS
        elif dtype.is_complex:
            self.tensor, allowed = torch.view_as_real(self.tensor.resolve_conj()), OF_COMPLEX
        elif dtype in INTEGERS:
            allowed = OF_INTEGERS
        elif dtype not in FLOATS:
            raise BufferRefused(f"MPI cannot reduce tensors of {dtype}: convert them to float32")
        if op not in allowed:
            raise InvalidArgument(f"backend mpicomp reduces tensors of {dtype} by {', '.join(allowed)}, got {op}: "
                                  "convert or scale the tensor, and take one of these")
        self.op, self.is_mapped = allowed[op], self._divides or self.tensor.dtype != dtype

    def reduce(self, comm: Comm) -> None:
        """Reduce the tensor in place, in a call that has been compared."""
        with self.flat() as flat:
            reduce_compared(comm, flat, self.op)
            self.divide(flat, comm.size)

    @contextmanager
    def flat(self) -> Iterator[torch.Tensor]:
        """The elements in C order, for a block that changes them; the tensor gets the result."""
        flat = in_order(self.tensor).view(-1)
        yield flat
        if flat.data_ptr() != self.tensor.data_ptr():
            self.tensor.copy_(flat.view(self.tensor.shape))
        if self._whole.is_conj():
            self._whole.copy_(torch.view_as_complex(self.tensor))

    def divide(self, flat: torch.Tensor, size: int) -> None:
        """Divide a sum by the number of ranks, if its mean is wanted; integers toward zero."""
        if self._divides and flat.dtype in UNSIGNED:  # which PyTorch cannot divide
            flat.copy_(torch.from_numpy(flat.cpu().numpy() // size))
        elif self._divides:
            flat.div_(size, rounding_mode=None if flat.is_floating_point() else "trunc")


def is_plain(tensor: torch.Tensor) -> bool:
    """Return True for a host tensor of real numbers in C order, which needs no other check."""
    return (tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.is_contiguous()
            and tensor.dtype in REAL and not tensor.is_neg())


def reduce_flat(comm: Comm, flat: torch.Tensor, op: str) -> None:
    """Reduce a contiguous tensor in place, in a call that ``Allreduce`` compares."""
    comm.Allreduce(IN_PLACE, flat if flat.is_cuda or flat.dtype == torch.bfloat16 else flat.numpy(), MPI_OPS[op])


def reduce_compared(comm: Comm, flat: torch.Tensor, op: str) -> None:
    """Reduce a contiguous tensor in place, in a call that has been compared."""
    finished(flat)
    array = bits(flat)
    comm.allreduce_in_place(array, op=op, kind=HALVES.get(flat.dtype))
    ready(array)  # PyTorch's streams do not wait for CuPy's, nor for NCCL's


def bits(flat: torch.Tensor) -> Array:
    """Return a tensor as an array; half precision as its bits."""
    return as_array(flat.view(torch.int16)).view("uint16") if flat.dtype in HALVES else as_array(flat)


# -- movements


def broadcast(comm: Comm, tensors: Tensors, root: int) -> None:
    """Copy the tensors of rank ``root`` to all ranks."""
    def check() -> None:
        check_rank("root", root, comm.size)
        for tensor in tensors:
            check_writable(tensor)

    compared(comm, check, f"broadcast of {said(tensors)} from rank {root}")
    for tensor in tensors:
        with filled(tensor, read=True) as array:
            comm.broadcast(array, root)


def all_gather(comm: Comm, outputs: Tensors, tensor: torch.Tensor) -> None:
    """Gather the tensors of all ranks, whose shapes may differ, in ``outputs``."""
    def check() -> None:
        check_list("output tensors", outputs, comm.size)
        check_same("this rank's output and its input", outputs[comm.rank], tensor)
        for output in outputs:
            check_same("outputs and input", output, tensor, shapes=False)
            check_writable(output)

    compared(comm, check, f"all_gather of {said(outputs)}")
    counts = [output.numel() for output in outputs]
    whole = torch.empty(sum(counts), dtype=tensor.dtype, device=tensor.device)
    gather_bytes(comm, whole, tensor, counts)
    for output, part in zip(outputs, torch.split(whole, counts), strict=True):
        output.detach().copy_(part.view(output.shape))


def all_gather_single(comm: Comm, output: torch.Tensor, tensor: torch.Tensor) -> None:
    """Gather the equal tensors of all ranks one behind another in ``output``."""
    def check() -> None:
        check_same("output and input", output, tensor, shapes=False)
        if output.numel() != comm.size * tensor.numel():
            raise InvalidArgument(f"the output of all_gather must have {comm.size} times the input's elements, got "
                                  f"{tuple(output.shape)} for {tuple(tensor.shape)}")
        check_writable(output)

    compared(comm, check, f"all_gather of {tensor.numel()} elements {tensor.dtype} per rank")
    gather_bytes(comm, output, tensor, [tensor.numel()] * comm.size)


def gather_bytes(comm: Comm, whole: torch.Tensor, tensor: torch.Tensor, counts: list[int]) -> None:
    """Gather tensors of so many elements one behind another."""
    nbytes = [count * tensor.element_size() for count in counts]
    if not sum(nbytes):
        return
    with filled(whole) as target:
        gathered, _ = comm.gather_to_all(as_bytes(tensor), nbytes, out=target)
        if gathered is not target:  # it came through staging buffers
            target[...] = gathered


def gather(comm: Comm, outputs: Tensors, tensor: torch.Tensor, root: int) -> None:
    """Gather the tensors of all ranks in ``outputs`` on rank ``root``."""
    here = comm.rank == root

    def check() -> None:
        check_rank("root", root, comm.size)
        check_dense(tensor)
        if here:
            check_list("output tensors", outputs, comm.size)
            for output in outputs:
                check_same("outputs and input", output, tensor)
                check_writable(output)

    compared(comm, check, f"gather of {said([tensor])} on rank {root}")
    exchange(comm, {root: tensor}, dict(enumerate(outputs)) if here else {})


def scatter(comm: Comm, output: torch.Tensor, inputs: Tensors, root: int) -> None:
    """Copy tensor r of rank ``root`` to rank r's ``output``."""
    here = comm.rank == root

    def check() -> None:
        check_rank("root", root, comm.size)
        check_writable(output)
        if here:
            check_list("input tensors", inputs, comm.size)
            for one in inputs:
                check_same("output and inputs", output, one)

    compared(comm, check, f"scatter of {said([output])} from rank {root}")
    exchange(comm, dict(enumerate(inputs)) if here else {}, {root: output})


def all_to_all(comm: Comm, outputs: Tensors, inputs: Tensors) -> None:
    """Send ``inputs[r]`` to each rank r, and receive from it in ``outputs[r]``."""
    def check() -> None:
        check_list("output tensors", outputs, comm.size)
        check_list("input tensors", inputs, comm.size)
        for one in (*outputs, *inputs):
            check_same("outputs and inputs", one, inputs[0], shapes=False)
        for output in outputs:
            check_writable(output)

    if compared(comm, check, f"all_to_all of tensors of {inputs[0].dtype if inputs else None}"):
        check_lengths(comm, outputs, inputs)
    exchange(comm, dict(enumerate(inputs)), dict(enumerate(outputs)))


def all_to_all_single(comm: Comm, output: torch.Tensor, tensor: torch.Tensor, output_splits: Sequence[int],
                      input_splits: Sequence[int]) -> None:
    """Send part r of a tensor's first dimension to each rank r; without split sizes, equal parts."""
    def split() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        check_writable(output)  # as a whole: its parts may share an element
        return parts(output, output_splits, comm.size), parts(tensor, input_splits, comm.size)

    all_to_all(comm, *checked(comm, split))


def parts(tensor: torch.Tensor, splits: Sequence[int], size: int) -> list[torch.Tensor]:
    """Cut a tensor along its first dimension."""
    check_dense(tensor)
    length = tensor.shape[0] if tensor.dim() else 0
    if not splits and length % size:
        raise InvalidArgument(f"all_to_all without split sizes needs a first dimension divisible by {size} ranks, got "
                              f"{tuple(tensor.shape)}: pass split sizes")
    lengths = list(splits) or [length // size] * size
    if len(lengths) != size or sum(lengths) != length or min(lengths) < 0:
        raise InvalidArgument(f"split sizes must be one per rank and sum to the first dimension, got {lengths} for "
                              f"{tuple(tensor.shape)} on {size} ranks")
    return list(torch.split(tensor.detach(), lengths))


def check_lengths(comm: Comm, outputs: Tensors, inputs: Tensors) -> None:
    """Raise on every rank unless each expects what the others send (collective)."""
    sent, expected = comm.swap_lengths([one.numel() for one in inputs]), [one.numel() for one in outputs]
    wrong = next((rank for rank in range(comm.size) if sent[rank] != expected[rank]), None)
    comm.fail_together(None if wrong is None else Disagreement(
        f"all_to_all: expected {expected[wrong]} elements from rank {wrong}, which sends {sent[wrong]}: give matching "
        "split sizes"))


def exchange(comm: Comm, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor]) -> None:
    """Send tensors to ranks and receive from ranks, this one among them."""
    me = comm.rank
    leaving = {rank: as_bytes(tensor) for rank, tensor in outgoing.items() if rank != me}
    arriving = {rank: tensor for rank, tensor in incoming.items() if rank != me}
    nbytes = {rank: tensor.numel() * tensor.element_size() for rank, tensor in arriving.items()}
    like = as_bytes(next(iter((*incoming.values(), *outgoing.values()))).new_empty(0))
    received = comm.send_and_receive(leaving, nbytes, like)
    ready(like)  # the tensors that were sent may change now
    if me in outgoing and me in incoming:
        incoming[me].detach().copy_(outgoing[me].detach().reshape(incoming[me].shape))
    for rank, tensor in arriving.items():
        with filled(tensor) as array:
            array[...] = received[rank]


def barrier(comm: Comm) -> None:
    """Wait for all ranks."""
    if not comm.compare_call("barrier"):  # which waits for all
        comm.agree("barrier")  # MPI's own would keep the core


# -- memory


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in C order, none of them to be conjugated or negated when read: the tensor, or a copy."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def as_bytes(tensor: torch.Tensor) -> Array:
    """Return the bytes of a tensor's elements in C order, which are there: its own memory, or a copy."""
    ordered = in_order(tensor)
    finished(ordered)
    flat = ordered.as_strided((ordered.numel(),), (1,))  # view(-1) keeps the stride of a lone element
    return as_array(flat.view(torch.uint8))


@contextmanager
def filled(tensor: torch.Tensor, read: bool = False) -> Iterator[Array]:
    """The bytes of a tensor's elements in C order, for a block that writes them, and may ``read`` them before."""
    tensor = tensor.detach()
    work = landing(tensor)
    if read and work is not tensor:
        work.copy_(tensor)
    array = as_bytes(work)
    yield array
    ready(array)  # streams of PyTorch do not wait for NCCL's
    if work is not tensor:
        tensor.copy_(work)


def landing(tensor: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """Return a tensor whose memory can be filled in C order: this one, or a new one, on ``device`` if given."""
    if device is None and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device or tensor.device)


# -- arguments


def checked(comm: Comm, work: Callable[[], R]) -> R:
    """Run rank-local work, before a call that is compared; its error takes part in that comparison."""
    try:
        return work()
    except Exception as error:
        comm.compare_call("refused", error)
        raise


def compared(comm: Comm, check: Callable[[], None], call: str) -> bool:
    """Check the arguments of this rank and compare the call over the ranks; return True if it was compared."""
    checked(comm, check)
    return comm.compare_call(call)


def said(tensors: Tensors) -> str:
    """Describe tensors as ranks compare them."""
    return ", ".join(f"{tuple(one.shape)} {str(one.dtype).removeprefix('torch.')}" for one in tensors)


def counted(tensors: Tensors) -> str:
    """Describe tensors to reduce as ranks compare them, whose shapes need not agree."""
    return ", ".join(f"{one.numel()} elements {str(one.dtype).removeprefix('torch.')}" for one in tensors)


def check_writable(tensor: torch.Tensor) -> None:
    """Refuse outputs that MPI cannot reach, or whose elements share memory."""
    check_dense(tensor)
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    if not tensor.is_contiguous() and any(length > 1 and stride == 0 for length, stride in sizes):
        raise BufferRefused("an output must have memory for each of its elements, got an expanded one of "
                            f"shape {tuple(tensor.shape)}: clone() it")


def check_dense(tensor: torch.Tensor) -> None:
    """Refuse tensors whose elements MPI cannot read."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise BufferRefused(f"mpicomp takes dense tensors, got a {kind} one: convert it by to_dense() or "
                            "dequantize()")
    if tensor.device.type not in ("cpu", "cuda"):
        raise BufferRefused(f"mpicomp takes tensors in host or CUDA memory, got one on {tensor.device}: copy "
                            "it by cpu()")
    if tensor.is_cuda:
        as_array(tensor.new_empty(0, dtype=torch.uint8))  # raises without CuPy, which lacks some dtypes


def check_list(name: str, tensors: Tensors, size: int) -> None:
    if len(tensors) != size:
        raise InvalidArgument(f"{name} must be one per rank, {size}, got {len(tensors)}")


def check_same(names: str, some: torch.Tensor, other: torch.Tensor, shapes: bool = True) -> None:
    """Refuse tensors of unlike dtypes, devices or, with ``shapes``, numbers of elements."""
    check_dense(some)
    check_dense(other)
    alike = some.dtype == other.dtype and some.device == other.device
    if not alike or (shapes and some.numel() != other.numel()):
        raise InvalidArgument(f"{names} must be alike, got {said([some])} on {some.device} and {said([other])} on "
                              f"{other.device}")


def check_rank(name: str, rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise InvalidArgument(f"{name} must be a rank of the group, 0 to {size - 1}, got {rank}")
