"""Runs a dense schedule on vectors, through pinned host memory where they are on a device; keeps the scratch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import allreduce
from ..allreduce.cost import least_bytes
from ..errors import BufferRefused
from ..ops import ops_for
from ..ops.device import at_home
from . import nccl
from .buffers import Vector
from .staging import Stage
from .transport import Link


class Reduction:
    """The dense schedules on ``link``; ``scratch`` holds the work arrays."""

    def __init__(self, link: Link, scratch: dict[Any, Any]):
        self._link, self._scratch = link, scratch

    def run(self, source: Vector | None, target: Vector, op: str, algorithm: str, factor: float = 1.0) -> None:
        """Reduce ``source`` into ``target``, or ``target`` in place, times ``factor``."""
        with at_home(target.array):
            self._run(source, target, op, algorithm, factor)

    def _run(self, source: Vector | None, target: Vector, op: str, algorithm: str, factor: float) -> None:
        staged = target.device is not None and (not self._link.takes_devices or algorithm in allreduce.ON_HOSTS)
        alone = self._link.size == 1 or target.array.size == 0
        if source is not None and (alone or staged or algorithm == nccl.NAME):
            target.array[...] = source.array
            source = None
        if alone:
            _scale(target.array, factor)
        elif algorithm == nccl.NAME:
            self._by_nccl(target, op, factor)
        elif staged:
            stage = self.stage(target.device)
            with self._link.schedule:
                stage.run(target.array, lambda host, _: self._here(host, target.kind, op, algorithm, factor))
        else:
            own = None if source is None else source.array
            self._here(target.array, target.kind, op, algorithm, factor, own)

    def _here(self, work: Any, kind: str | None, op: str, algorithm: str, factor: float, source: Any = None) -> None:
        """Run a schedule on memory that MPI may touch."""
        if algorithm == "native":  # which takes arrays that no operations of ours know, if there is nothing to scale
            self._link.check()
            views = [one.view(kind) if kind and one is not None else one for one in (work, source)]
            self._link.native_allreduce(views[0], op, views[1])
            _scale(work, factor)
            return
        ops, options = ops_for(work), {"kind": kind} if kind else {}
        run, scratch = allreduce.get(algorithm), self._scratch_of(ops, work.dtype)
        with self._link.schedule:
            run(self._link, work, op, ops, scratch, factor, source, **options)

    def _by_nccl(self, target: Vector, op: str, factor: float) -> None:
        """Through NCCL, whose communicator is made at first use."""
        if nccl.NAME not in self._scratch:
            self._scratch[nccl.NAME] = nccl.Nccl(self._link.comm)
        self._scratch[nccl.NAME].allreduce(target, op)
        _scale(target.array, factor)
        self._link.count_modelled(least_bytes(target.array.nbytes, self._link.size))

    def _scratch_of(self, ops: Any, like: np.dtype) -> Callable[..., Any]:
        """Cached work arrays: at least ``n`` elements, one array a dtype and ``slot``."""

        def scratch(n: int, dtype: Any = like, slot: str = "") -> Any:
            key = (ops, str(dtype), slot)
            array = self._scratch.get(key)
            if array is None or array.size < n:
                array = self._scratch[key] = ops.empty(n, dtype)
            return array

        return scratch

    def stage(self, device: Any) -> Stage:
        path, reason = self._link.settings.gpu_path
        if path == "none":
            raise BufferRefused(reason)
        return self._scratch.setdefault(("stage", id(device)), Stage(device, self._link.settings.stage_bytes))


def _scale(x: Any, factor: float) -> None:
    if factor != 1.0:
        ops_for(x).scale(x, factor)
