"""The same beginning on all ranks: parameters, buffers and optimizer state of one of them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from operator import index
from typing import SupportsIndex

import torch

from ..comm.broadcast import broadcast_bytes
from ..comm.comm import Comm
from ..comm.safety.collective_errors import check_communicator, run_collectively
from ..errors import Disagreement, InvalidArgument
from .tensor_collectives import check_dense, filled


@torch.no_grad()
def broadcast_parameters(tensors: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]], comm: Comm,
                         root: int = 0) -> None:
    """Overwrite tensors on every rank by those of ``root`` (collective).

    Parameters
    ----------
    tensors : mapping or pairs of name and tensor
        ``model.state_dict()`` (parameters and buffers) or ``model.named_parameters()``; values that are no tensors
        are left out.
    comm : Comm
    root : int

    Raises
    ------
    Disagreement
        On every rank, if names, shapes or dtypes differ: the first that does. Or ``root`` differs.
    InvalidArgument
        On every rank: there is no rank ``root``.
    BufferRefused
        On every rank: a tensor is sparse, or in memory that MPI cannot read.
    """
    pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
    named = [(name, tensor.detach()) for name, tensor in pairs if isinstance(tensor, torch.Tensor)]
    check_alike(comm, [describe(name, tensor) for name, tensor in named], root)

    def check() -> None:
        for _, tensor in named:
            check_dense(tensor)

    run_collectively(comm, check)
    for _, tensor in named:
        if not tensor.numel():
            continue
        with filled(tensor, read=True) as array:
            comm.broadcast(array, root)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, comm: Comm, root: int = 0) -> None:
    """Give every rank's optimizer the state and the hyper-parameters of ``root``'s (collective).

    Of a ``DistributedOptimizer`` it is the wrapped optimizer that gets them: each rank keeps its error memory.
    """
    check_root(comm, root)
    own: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    packed = run_collectively(comm, lambda: pickle.dumps(own.state_dict()), here=comm.rank == root)
    data = broadcast_bytes(comm, packed or b"", root)  # unlike MPI's own, of any length
    run_collectively(comm, lambda: _load(own, pickle.loads(data.data)), here=comm.rank != root)


def _load(optimizer: torch.optim.Optimizer, state: dict[str, object]) -> None:
    optimizer.load_state_dict(state)
    for parameter, own in optimizer.state.items():
        own.update({key: laid_out_as(parameter, value) for key, value in own.items()})


def laid_out_as(parameter: torch.Tensor, value: object) -> object:
    """A tensor of a parameter's shape in the parameter's memory layout, which fused optimizers read; others as is."""
    if not isinstance(value, torch.Tensor) or value.shape != parameter.shape or value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def describe(name: str, tensor: torch.Tensor) -> str:
    """Name, shape and dtype of a tensor, for comparisons between ranks."""
    return f"{name} {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def check_root(comm: Comm, root: int) -> None:
    """Raise on every rank unless all name one rank that exists (collective)."""
    check_communicator(comm)
    exists = isinstance(root, SupportsIndex) and 0 <= index(root) < comm.size
    comm.agree(f"values of rank {root}", None if exists else InvalidArgument(
        f"root must be a rank, 0 to {comm.size - 1}, got {root!r}"))


def check_alike(comm: Comm, mine: list[str], root: int = 0) -> None:
    """Raise on every rank unless all have the texts of ``root`` (collective)."""
    check_root(comm, root)
    theirs = comm.bcast(mine, root)
    error = None
    if mine != theirs:
        at = next((i for i, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]),
                  min(len(mine), len(theirs)))
        here, there = (texts[at] if at < len(texts) else "nothing" for texts in (mine, theirs))
        error = Disagreement(
            f"the model differs from rank {root}'s: its tensor {at} is {here}, expected {there} "
            f"({len(mine)} tensors here, {len(theirs)} there). Build the same model on every rank"
        )
    comm.fail_together(error)
