"""Collective verbs of ``Comm`` that the compressed exchanges are made of: on flat arrays, on the host or a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from .. import allreduce
from ..allreduce.choice import schedule
from ..errors import BufferRefused, InvalidArgument
from ..ops import ops_for
from ..ops.device import device_of
from . import nccl
from .allgather import gather_to_all
from .allreduce_call import place
from .broadcast import broadcast
from .buffers import Vector, check_flat, check_pair, typed
from .safety.call_log import logged
from .safety.checks import Checks


class Verbs(Checks):
    """Flat contiguous arrays; no copy of MPI's names needed. Mixed into ``Comm``."""

    @logged
    def allreduce_in_place(self, x: Any, algorithm: str = "auto", op: str = "sum", kind: str | None = None,
                           factor: float = 1.0) -> None:
        """Reduce the flat array ``x`` over all ranks, in place; ``kind="bfloat16"`` says what uint16 bits stand for.

        Every element of the result is multiplied by ``factor``, rounded to float32 or float64, the only dtypes that
        take one: 1 / size gives the mean for less than a pass of its own.
        """
        self._allreduce_flat(None, x, algorithm, op, kind, factor)

    @logged
    def allreduce_from(self, sendbuf: Any, recvbuf: Any, algorithm: str = "auto", factor: float = 1.0) -> None:
        """Add up the flat array ``sendbuf`` over all ranks into ``recvbuf``, as `allreduce_in_place` does."""
        self._allreduce_flat(sendbuf, recvbuf, algorithm, "sum", None, factor)

    def _allreduce_flat(self, sendbuf: Any, x: Any, algorithm: str, op: str, kind: str | None, factor: float) -> None:
        link = self._link or self._open()
        allreduce.check_asked(algorithm)
        target = flat_vector(x, "x", kind)
        source = None if sendbuf is None else flat_vector(sendbuf, "sendbuf", kind)
        if source is not None:
            check_pair(source, target)
        if factor != 1.0 and (target.kind or target.array.dtype.kind != "f"):
            raise InvalidArgument(f"only float32 and float64 take a factor, got {target.name}")
        if algorithm == nccl.NAME:
            nccl.check_vector(target, op)
        call = f"all-reduce of {target.array.size} elements {target.name}, op={op}, algorithm={algorithm}"
        self._verify(", ".join([call, *place(target.device)]))
        chosen = schedule(target, op, self._default if algorithm == "auto" else algorithm, link)
        self._reduction.run(source, target, op, chosen, factor)

    def wait_for(self, request: Any) -> None:
        """Return when an all-reduce in flight is done, and raise what went wrong; meanwhile do work of `meanwhile`."""
        (self._link or self._open()).wait(request)

    @logged
    def broadcast(self, x: Any, root: int) -> None:
        """Copy the flat array ``x`` of rank ``root`` into that of every rank."""
        link = self._link or self._open()
        if not 0 <= root < link.size:
            raise InvalidArgument(f"root must be a rank, 0 to {link.size - 1}, got {root}")
        flat = check_flat(x, "x").view(np.uint8)
        device = device_of(x)
        self._verify(", ".join([f"broadcast of {x.size} elements {x.dtype} from rank {root}", *place(device)]))
        with link.schedule:
            if device is None or link.takes_devices or link.size == 1:
                broadcast(link, flat, root)
            else:
                here = link.rank == root
                stage = self._reduction.stage(device)
                stage.run(flat, lambda host, _: broadcast(link, host, root), outward=here, back=not here)

    @property
    def own_message(self) -> int:
        """Which of the messages that all ranks have gathered is this rank's own, and need not be read."""
        return (self._link or self._open()).rank

    @logged
    def gather_to_all(self, x: Any, counts: list[int] | None = None) -> tuple[Any, list[int]]:
        """Every rank's flat array ``x``, one after the other in rank order, and how many elements each has (asked of
        all ranks where not given).
        """
        link = self._link or self._open()
        flat, device = check_flat(x, "x"), device_of(x)
        self._verify(f"gather_to_all of elements {x.dtype}, counts={counts}")
        return self._gather_to_all(link, flat, device, counts)

    def _gather_to_all(self, link: Any, flat: Any, device: Any, counts: list[int] | None) -> tuple[Any, list[int]]:
        counts = counts or link.gather_lengths(flat.size)
        staged = device is not None and not link.takes_devices
        mine = self._reduction.stage(device).to_host(flat) if staged else flat
        gathered = ops_for(mine).empty(sum(counts), mine.dtype)
        with link.schedule:
            gather_to_all(link, mine.view(np.uint8), gathered.view(np.uint8), [n * mine.itemsize for n in counts])
        if not staged:
            return gathered, counts
        result = device.empty(gathered.size, flat)
        self._reduction.stage(device).to_device(result, gathered)
        return result, counts

    def _gather_bytes(self, text: bytes) -> list[bytes]:
        flat, counts = self._gather_to_all(self._link, np.frombuffer(text, np.uint8), None, None)
        return [part.tobytes() for part in np.split(flat, np.cumsum(counts)[:-1])]

    def wait_patiently(self) -> None:
        """From now on this rank's waits in our own verbs leave the core to threads that compute: each may then end a
        tenth of a millisecond late. For a communicator that a thread of its own uses.
        """
        (self._link or self._open()).patient = True

    def meanwhile(self, work: Iterator[None]) -> AbstractContextManager[None]:
        """Within the block, time spent waiting in our own verbs goes to ``work``, piece by piece, and at its end to
        what is left. The work is local: no MPI.
        """
        return (self._link or self._open()).meanwhile(work)


def flat_vector(x: Any, name: str, kind: str | None) -> Vector:
    """A flat array; ``kind="bfloat16"`` says what uint16 bits stand for."""
    flat, device = check_flat(x, name), device_of(x)
    found = Vector(flat, kind, device) if kind else typed(flat, device)
    if found is None:
        raise BufferRefused(f"{name} must hold float16, bfloat16, float32, float64 or integers, got {x.dtype}")
    return found
