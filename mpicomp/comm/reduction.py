"""Dense schedules on vectors, through pinned host memory for devices that MPI does not read; keeps the scratch."""

from __future__ import annotations

from functools import partial

import numpy.typing as npt

from .. import allreduce
from ..allreduce.interfaces import Scratch
from ..errors import BufferRefused
from ..ops import ops_for
from ..ops.device import Device, at_home
from ..ops.protocol import Ops
from ..types import Array
from . import nccl
from .buffers import Vector
from .staging import Stage
from .transport import MpiLink


class Reduction:
    """Runs the dense schedules on ``link``."""

    def __init__(self, link: MpiLink) -> None:
        self._link = link
        self._nccl: nccl.Nccl | None = None
        self._stages: dict[int, Stage] = {}
        self.scratch: dict[tuple[object, str, str], Array] = {}  # by operations, dtype and slot

    def run(self, source: Vector | None, target: Vector, op: str, algorithm: str, factor: float = 1.0) -> None:
        """Reduce ``source`` into ``target``, or ``target`` in place, times ``factor``."""
        with at_home(target.array):
            self._run(source, target, op, algorithm, factor)

    def _run(self, source: Vector | None, target: Vector, op: str, algorithm: str, factor: float) -> None:
        device = target.device
        staged = device is not None and (not self._link.takes_devices or algorithm in allreduce.ON_HOSTS)
        alone = self._link.size == 1 or target.array.size == 0
        if source is not None and (alone or staged or algorithm == nccl.NAME):
            target.array[...] = source.array
            source = None
        if alone:
            _scale(target.array, factor)
        elif algorithm == nccl.NAME:
            self._run_nccl(target, op, factor)
        elif device is not None and staged:
            stage = self.stage(device)
            with self._link.break_on_error:
                stage.run(target.array, lambda host, _: self._here(host, target.kind, op, algorithm, factor))
        else:
            own = None if source is None else source.array
            self._here(target.array, target.kind, op, algorithm, factor, own)

    def _here(self, work: Array, kind: str | None, op: str, algorithm: str, factor: float,
              source: Array | None = None) -> None:
        """Run a schedule on memory that MPI reads and writes."""
        if algorithm == "native":  # also for arrays without operations of ours, if there is nothing to scale
            self._link.check()
            self._link.native_allreduce(work.view(kind) if kind else work, op,
                                        source.view(kind) if kind and source is not None else source)
            _scale(work, factor)
            return
        ops, options = ops_for(work), {"kind": kind} if kind else {}
        run, scratch = allreduce.get(algorithm), self.scratch_for(ops, work.dtype)
        with self._link.break_on_error:
            run(self._link, work, op, ops, scratch, factor, source, **options)

    def _run_nccl(self, target: Vector, op: str, factor: float) -> None:
        """Run NCCL, whose communicator is made at first use."""
        self._nccl = self._nccl or nccl.Nccl(self._link.comm)
        self._nccl.allreduce(target, op)
        _scale(target.array, factor)
        self._link.count_native(target.array.nbytes)

    def scratch_for(self, ops: Ops, like: npt.DTypeLike) -> Scratch:
        """Return the work memory of a schedule on vectors of dtype ``like``."""
        return partial(self._scratch, ops, like)

    def _scratch(self, ops: Ops, like: npt.DTypeLike, n: int, dtype: npt.DTypeLike | None = None, slot: str = ""
                 ) -> Array:
        """Return the work array of a slot, of at least ``n`` elements."""
        dtype = like if dtype is None else dtype
        key = (ops, str(dtype), slot)
        array = self.scratch.get(key)
        if array is None or array.size < n:
            array = self.scratch[key] = ops.empty(n, dtype)
        return array

    def stage(self, device: Device) -> Stage:
        """Return the staging buffers of a device; raise BufferRefused if it must not go through the host."""
        path, reason = self._link.settings.gpu_path
        if path == "none":
            raise BufferRefused(reason)
        return self._stages.setdefault(id(device), Stage(device, self._link.settings.stage_bytes))


def _scale(x: Array, factor: float) -> None:
    if factor != 1.0:
        ops_for(x).scale(x, factor)
