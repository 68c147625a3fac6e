"""Gradients one behind another in one tensor, which NumPy or CuPy sees as named arrays; no copy between them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..errors import BufferRefused, InvalidArgument
from ..ops.device import device_of
from ..types import Array

Named = list[tuple[str, torch.nn.Parameter]]

LEAST_BUCKET, MOST_BUCKET, WANTED_BUCKETS = 128 << 10, 25 << 20, 6  # bytes, bytes, number

# Half precision is computed in float32, as in a Reducer.
COMPUTE = {
    torch.float16: torch.float32, torch.bfloat16: torch.float32,
    torch.float32: torch.float32, torch.float64: torch.float64,
}  # fmt: skip


class FlatBucket:
    """The gradients of some parameters of one device and one dtype of computation.

    Attributes
    ----------
    flat : tensor, 1-D
    views : list of tensors
        Its parts, in the parameters' shapes.
    arrays : dict of name -> array
        The same memory for a ``Reducer``.
    """

    def __init__(self, named: Named) -> None:
        self.names, self.parameters = [name for name, _ in named], [parameter for _, parameter in named]
        first = self.parameters[0]
        counts = [parameter.numel() for parameter in self.parameters]
        self.flat = torch.zeros(sum(counts), dtype=COMPUTE[first.dtype], device=first.device)
        parts = zip(torch.split(self.flat, counts), self.parameters, strict=True)
        self.views = [part.view(parameter.shape) for part, parameter in parts]
        self.arrays = named_arrays(self.flat, self.names, [parameter.shape for parameter in self.parameters])

    def put(self, index: int, gradient: torch.Tensor, factor: float) -> None:
        """Write a parameter's gradient times ``factor`` to its place.

        Raises
        ------
        BufferRefused
            It is sparse, or no longer as the parameter was when its place was made.
        """
        view = self.views[index]
        if gradient.layout != torch.strided or gradient.shape != view.shape or gradient.device != view.device:
            raise BufferRefused(self._unlike(index, gradient))
        if gradient.data_ptr() != view.data_ptr() or gradient.dtype != view.dtype:
            view.copy_(gradient)
        elif not gradient.is_contiguous():  # the same memory, read in another order
            view.copy_(gradient.clone())
        if factor != 1.0:
            view.mul_(factor)

    def mean_of(self, index: int) -> torch.Tensor:
        """A parameter's mean gradient in its own dtype and memory layout: its place itself, or a copy."""
        view, parameter = self.views[index].detach(), self.parameters[index]  # model.to() replaces a gradient's memory
        if in_c_order(parameter):
            return view.to(parameter.dtype)
        return torch.empty_like(parameter).copy_(view)

    def _unlike(self, index: int, gradient: torch.Tensor) -> str:
        view, name = self.views[index], self.names[index]
        if gradient.layout != torch.strided:
            return about_sparse(name)
        return (
            f"the gradient of {name} has shape {list(gradient.shape)} on {gradient.device}, expected "
            f"{list(view.shape)} on {view.device}: change the model before DistributedOptimizer is made"
        )


def about_sparse(name: str) -> str:
    """Return the text of an error about a sparse gradient."""
    return f"the gradient of {name} is sparse, expected a dense one: make the layer with sparse=False"


def in_c_order(parameter: torch.Tensor) -> bool:
    """Return True if PyTorch lays out a parameter's gradient in C order.

    If the parameter's strides leave no gaps (channels_last, a transposed matrix), its gradient has the same strides:
    fused optimizers and DDP rely on it.
    """
    return parameter.is_contiguous() or torch.empty_like(parameter, device="meta").stride() != parameter.stride()


def named_arrays(flat: torch.Tensor, names: Sequence[str], shapes: Sequence[Sequence[int]]) -> dict[str, Array]:
    """Parts of a flat tensor, in the order of ``names``, as NumPy or CuPy arrays of its memory."""
    vector, at = as_array(flat), 0
    arrays: dict[str, Array] = {}
    for name, shape in zip(names, shapes, strict=True):
        stop = at + math.prod(shape)
        arrays[name], at = vector[at:stop].reshape(tuple(shape)), stop
    return arrays


def as_array(flat: torch.Tensor) -> Array:
    """A contiguous 1-D tensor as a NumPy array, or as a CuPy array if it is on a GPU; no copy."""
    flat = flat.detach()
    device = device_of(flat)
    array: Array = flat.numpy() if device is None else device.flat(flat)
    return array


def finished(tensor: torch.Tensor) -> None:
    """Wait for what this thread has queued on a tensor of a GPU: streams of CuPy, of DDP and of MPI do not."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()


def plan(named: Named, bucket_bytes: int) -> list[Named]:
    """Which parameters share a bucket: the last bucket of the model first, as backward gives its gradients.

    A bucket is full when it has ``bucket_bytes``; its parameters share device and dtype of computation and stand in
    the model's order. All ranks plan alike, since they have compared names, shapes and dtypes.
    """
    open_: dict[tuple[torch.device, torch.dtype], Named] = {}
    full: list[Named] = []
    for name, parameter in reversed(named):
        key = parameter.device, COMPUTE[parameter.dtype]
        bucket = open_.setdefault(key, [])
        bucket.append((name, parameter))
        if sum(nbytes(one) for _, one in bucket) >= bucket_bytes:
            full.append(open_.pop(key))
    return [bucket[::-1] for bucket in (*full, *open_.values())]


def nbytes(parameter: torch.Tensor) -> int:
    """Bytes of a parameter's gradient in its dtype of computation."""
    return parameter.numel() * COMPUTE[parameter.dtype].itemsize


def bucket_size(named: Named, wanted: int | None) -> int:
    """Bytes of a bucket, as wanted or in proportion to the model."""
    if wanted is not None:
        if wanted < 1:
            raise InvalidArgument(f"bucket_bytes must be positive, got {wanted}")
        return wanted
    total = sum(nbytes(parameter) for _, parameter in named)
    return max(LEAST_BUCKET, min(MOST_BUCKET, total // WANTED_BUCKETS))
