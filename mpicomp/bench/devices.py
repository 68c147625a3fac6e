"""GPUs of the ranks: choice, properties, arrays on them."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..comm.safety.collective_errors import run_collectively
from ..errors import InvalidArgument, MpicompError
from ..ops.gpu import cuda_runtime
from ..types import Array
from .environment import Gpu, Rank

if TYPE_CHECKING:
    from ..comm.comm import Comm


def choose_device(comm: Comm) -> int:
    """Select the GPU of this rank: its rank on the node, modulo the number of GPUs (collective)."""
    hosts = comm.allgather(socket.gethostname())

    def choose() -> int:
        chosen: int = hosts[: comm.rank].count(hosts[comm.rank]) % _count()
        cuda_runtime.xp().cuda.runtime.setDevice(chosen)
        return chosen

    return run_collectively(comm, choose)


def to_device(host: np.ndarray, device: str) -> Array:
    """Copy a NumPy array to ``device``; on "cpu" it is the array itself."""
    if device == "cpu":
        return host
    from ..ops import gpu

    return gpu.from_host(host)


def _count() -> int:
    runtime = cuda_runtime.xp().cuda.runtime
    try:
        count: int = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise InvalidArgument(f"--device gpu: CUDA says {error}; use --device cpu, or a node with a GPU") from error
    if not count:
        raise InvalidArgument("--device gpu: no GPU is visible; check CUDA_VISIBLE_DEVICES and --gpus-per-node")
    return count


def device_of_rank(local_rank: int) -> Gpu | None:
    """The GPU of rank ``local_rank`` on this node; None without CuPy or a GPU."""
    try:
        number = local_rank % _count()
    except (MpicompError, AttributeError):
        return None
    facts = cuda_runtime.xp().cuda.runtime.getDeviceProperties(number)
    return {"number": number, "name": facts["name"].decode(), "uuid": bytes(facts["uuid"]).hex(),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}  # fmt: skip


def shared(table: Sequence[Rank]) -> dict[str, list[int]]:
    """The devices (by host and UUID) that several ranks of ``table`` use, and those ranks."""
    used = [(f"{one['host']} {gpu['uuid']}", one["rank"]) for one in table if (gpu := one.get("gpu"))]
    crowded = {name for name, times in Counter(name for name, _ in used).items() if times > 1}
    return {name: [rank for other, rank in used if other == name] for name in sorted(crowded)}
