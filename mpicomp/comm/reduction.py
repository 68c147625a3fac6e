"""Dense schedules on vectors, through pinned host memory for devices that MPI does not read; keeps the scratch."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from .. import allreduce
from ..allreduce import direct
from ..allreduce.choice import schedule
from ..allreduce.interfaces import Scratch
from ..allreduce.narrowed import InHalf, in_half
from ..errors import BufferRefused
from ..ops import ops_for
from ..ops.device import ON_HOST, Device, at_home, gpu_of
from ..ops.protocol import Ops
from ..types import Array
from . import nccl
from .buffers import Vector
from .staging import Stage, piece_bytes
from .transport import MpiLink


class Reduction:
    """Runs the dense schedules on ``link``."""

    def __init__(self, link: MpiLink) -> None:
        self._link = link
        self.nccl = nccl.Communicators(link.comm, link.settings.prefers_nccl)
        self._stages: dict[int, Stage] = {}
        self.scratch: dict[tuple[object, int, str, str], Array] = {}  # by operations, GPU, dtype and slot

    def schedule(self, target: Vector, op: str, algorithm: str) -> str:
        """Return the schedule that runs for the requested ``algorithm``; the first use of a device is collective."""
        link = self._link
        if algorithm in allreduce.LOSSY and link.one_node and not link.reproducible:
            algorithm = "auto"  # codes save nothing in shared memory
        if algorithm == "auto" and not link.reproducible and self.nccl.takes(target, op):
            return nccl.NAME
        return schedule(target, op, algorithm, link)

    def run(self, source: Vector | None, target: Vector, op: str, algorithm: str, factor: float = 1.0) -> None:
        """Reduce ``source`` into ``target``, or ``target`` in place, times ``factor``."""
        with at_home(target.array) if target.device is not None else ON_HOST:
            self._run(source, target, op, algorithm, factor)

    def _run(self, source: Vector | None, target: Vector, op: str, algorithm: str, factor: float) -> None:
        device = target.device
        staged = device is not None and (not self._link.takes_devices or algorithm in allreduce.ON_HOSTS)
        alone = self._link.size == 1 or target.array.size == 0
        if algorithm == nccl.NAME and not alone:
            self._run_nccl(target if source is None else source, target, op, factor)
            return
        if source is not None and (alone or staged):
            target.array[...] = source.array
            source = None
        if alone:
            _scale(target.array, factor)
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
        run, scratch = allreduce.get(algorithm), self.scratch_for(ops, work.dtype, gpu_of(work))
        with self._link.break_on_error:
            run(self._link, work, op, ops, scratch, factor, source, **options)

    def scatter(self, source: Vector, target: Vector, op: str) -> None:
        """Reduce the host vector ``source``; write this rank's block of it into ``target``."""
        link, work = self._link, source.array
        if link.size == 1 or work.size == 0:
            target.array[...] = work
            return
        ops = ops_for(work)
        scratch = self.scratch_for(ops, work.dtype)
        with link.break_on_error:
            direct.reduce_scatter(link, work, target.array, op, ops, scratch, source.kind)

    def in_half(self, n: int, kind: str, like: Array, schedule: str) -> InHalf:
        """Return a sum of ``n`` float32 in host memory, as ``like``, that travel in the half precision ``kind``."""
        ops = ops_for(like)
        return in_half(self._link, n, kind, schedule, ops, self.scratch_for(ops, np.uint16),
                       lambda bits: self.run(None, Vector(bits, kind, None), "sum", schedule))

    def _run_nccl(self, source: Vector, target: Vector, op: str, factor: float) -> None:
        """Queue NCCL's all-reduce on the current stream."""
        with self._link.break_on_error:
            self.nccl.of(target.array).allreduce(source.array, target, op)
        _scale(target.array, factor)
        self._link.count_native(target.array.nbytes)

    def scratch_for(self, ops: Ops, like: npt.DTypeLike, gpu: int = -1) -> Scratch:
        """Return the work memory of a schedule on vectors of dtype ``like``, in host memory or on a ``gpu``."""
        return partial(self._scratch, ops, like, gpu)

    def _scratch(self, ops: Ops, like: npt.DTypeLike, gpu: int, n: int, dtype: npt.DTypeLike | None = None,
                 slot: str = "") -> Array:  # fmt: skip
        """Return the work array of a slot, of at least ``n`` elements."""
        dtype = like if dtype is None else dtype
        key = (ops, gpu, str(dtype), slot)
        array = self.scratch.get(key)
        if array is None or array.size < n:
            array = self.scratch[key] = ops.empty(n, dtype)
        return array

    def stage(self, device: Device) -> Stage:
        """Return the staging buffers of a device; raise BufferRefused if it must not go through the host."""
        path, reason = self._link.settings.gpu_path
        if path == "none":
            raise BufferRefused(reason)
        length = piece_bytes(self._link.settings.stage_bytes, self._link.size)
        return self._stages.setdefault(id(device), Stage(device, length))


def _scale(x: Array, factor: float) -> None:
    if factor != 1.0 and x.size:  # bits of half precision have no scale
        ops_for(x).scale(x, factor)
