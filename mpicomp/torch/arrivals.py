"""DDP's buckets in one step, and the groups of parameters that keep their Reducer whatever DDP's buckets are."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import torch

from .flat import COMPUTE, finished, in_c_order


class GradBucket(Protocol):
    """One of DDP's buckets."""

    def buffer(self) -> torch.Tensor: ...

    def parameters(self) -> list[torch.nn.Parameter]: ...


class Arrival:
    """One of DDP's buckets in one step: its gradients, and the future that DDP waits for.

    Its maker holds the bucket, as does everyone who calls ``hold``; when all are ``done``, the future is completed.
    """

    def __init__(self, bucket: GradBucket) -> None:
        self.flat, self.parameters = bucket.buffer(), bucket.parameters()
        self.future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._event = torch.cuda.current_stream(self.flat.device).record_event() if self.flat.is_cuda else None
        self._lock, self._holders = threading.Lock(), 1
        self._error: Exception | None = None

    def wait(self) -> None:
        """Wait until a GPU has computed the gradients: DDP adds all of them up on one stream."""
        if self._event is not None:
            self._event.synchronize()

    def gradients(self) -> dict[torch.nn.Parameter, torch.Tensor]:
        """Views by parameter, which lie in memory as DDP lays them out: as the parameters."""
        parts = torch.split(self.flat, [parameter.numel() for parameter in self.parameters])
        return {parameter: part.view(parameter.shape) if in_c_order(parameter) else
                part.as_strided(parameter.shape, parameter.stride())
                for parameter, part in zip(self.parameters, parts, strict=True)}

    def hold(self) -> None:
        with self._lock:
            self._holders += 1

    def done(self, error: Exception | None = None) -> None:
        """Complete the future after the last holder of the bucket; DDP raises the first error."""
        with self._lock:
            self._holders -= 1
            self._error = self._error or error
            if self._holders:
                return
        if self._error is None:
            self.future.set_result(self.flat)
        else:
            self.future.set_exception(self._error)  # type: ignore[arg-type]  # PyTorch says a result, means an error


class Group:
    """Parameters whose gradients one Reducer averages, whichever of DDP's buckets they come in.

    Attributes
    ----------
    arrivals : list of Arrival
        The buckets of this step that have some of the gradients.
    missing : int
        Number of gradients that this step has not brought yet.
    """

    def __init__(self, number: int, parameters: Sequence[torch.nn.Parameter], names: Sequence[str],
                 dense: bool = False) -> None:
        self.number, self.parameters, self.names, self.dense = number, list(parameters), list(names), dense
        self.begin()

    def begin(self) -> None:
        self.arrivals: list[Arrival] = []
        self.missing = len(self.parameters)

    def put(self, arrival: Arrival, count: int) -> bool:
        """Hold a bucket that has ``count`` of the gradients; return True if all are there."""
        arrival.hold()
        self.arrivals.append(arrival)
        self.missing -= count
        return not self.missing


def same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Return True if two sequences hold the same objects in the same order."""
    return list(map(id, some)) == list(map(id, others))


def gathered(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Copies one behind another, each in the order of its shape, in the dtype of computation."""
    count, first = sum(gradient.numel() for gradient in gradients), gradients[0]
    flat = first.new_empty(count, dtype=COMPUTE[first.dtype])
    for part, gradient in zip(parts(flat, gradients), gradients, strict=True):
        part.copy_(gradient)
    finished(flat)
    return flat


def scatter(flat: torch.Tensor, gradients: list[torch.Tensor]) -> None:
    """Write the result of ``gathered`` back."""
    for part, gradient in zip(parts(flat, gradients), gradients, strict=True):
        gradient.copy_(part)
    finished(flat)


def parts(flat: torch.Tensor, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """The parts of a flat tensor, in the shapes of the gradients."""
    split = torch.split(flat, [gradient.numel() for gradient in gradients])
    return [part.view(gradient.shape) for part, gradient in zip(split, gradients, strict=True)]
