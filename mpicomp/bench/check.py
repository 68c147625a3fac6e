"""Real steps, for predictions to be held against: MPI's own all-reduce, dense algorithms, schemes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .. import allreduce
from ..reducer import Reducer
from .probe import timed, typical

NATIVE_S = 1.0  # one call of MPI's own all-reduce may take about so long; of longer ones a part is timed
FIRST_BYTES = 1 << 20


def native(comm: Any, n: int) -> tuple[float, str]:
    """Seconds of MPI's all-reduce of ``n`` float32, and how they were found (collective)."""
    length = min(n, FIRST_BYTES // 4)
    x = np.ones(length, np.float32)
    timed(lambda: comm.Allreduce(None, x, algorithm="native"), comm)  # connects
    seconds = timed(lambda: comm.Allreduce(None, x, algorithm="native"), comm)
    length = min(n, max(length, int(length * NATIVE_S / max(seconds, 1e-9))))
    x = np.ones(length, np.float32)
    seconds = typical(lambda: comm.Allreduce(None, x, algorithm="native"), comm)
    if length == n:
        return seconds, "native: measured at the model's length"
    return seconds * n / length, f"native: measured at {4 * length} bytes, and taken to grow with the length from there"


def steps(comm: Any, whats: Sequence[str], layers: Sequence[tuple[str, tuple[int, ...], float]]) -> dict[str, float]:
    """Median seconds of an all-reduce by each algorithm, or a step of each scheme, on random gradients (collective)."""
    generator = np.random.default_rng(comm.rank)
    n = sum(math.prod(shape) for _, shape, _ in layers)
    flat = generator.standard_normal(n, np.float32)
    return {what: typical(step(comm, what, flat, layers), comm) for what in whats}


def step(comm: Any, what: str, flat: np.ndarray, layers: Sequence[tuple[str, tuple[int, ...], float]]) -> Any:
    """A call that does one; a first one has been done."""
    call: Callable[[], Any]
    if what in allreduce.names():
        call = partial(comm.Allreduce, None, np.zeros_like(flat), algorithm=what)  # in place, again and again
    else:
        reducer = Reducer(comm, what)
        call = partial(reducer.reduce_sparse, by_array(flat, layers) if needs_arrays(reducer) else flat)
    timed(call, comm)
    return call


def needs_arrays(reducer: Reducer) -> bool:
    """Whether a scheme treats arrays one by one; else one vector spares it copying them together."""
    parts = reducer.scheme.part_names
    return (reducer.scheme.options["layers"] == "per-tensor" or parts["exchange"] == "low-rank"
            or parts["codec"] not in ("float", "levels"))


def by_array(flat: np.ndarray, layers: Sequence[tuple[str, tuple[int, ...], float]]) -> dict[str, np.ndarray]:
    found, at = {}, 0
    for name, shape, _ in layers:
        length = math.prod(shape)
        found[name] = flat[at : at + length].reshape(shape)
        at += length
    return found
