"""Real steps, for predictions to be held against: MPI's own all-reduce, dense algorithms, schemes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .. import allreduce
from ..reducer.reducer import Reducer
from ..schemes.registry import Scheme
from .probe import timed, typical

NATIVE_S = 1.0  # one call of MPI's own all-reduce may take about so long; of longer ones a part is timed
FIRST_BYTES = 1 << 20
HARDLY = 2.0**-20  # what a memory takes up of the unsent

KindsOf = Callable[[Scheme], Sequence[tuple[int, float]]]  # a step's number, and the share of all steps that are so


def one_kind(scheme: Scheme) -> Sequence[tuple[int, float]]:
    """Where all steps are taken to be alike."""
    return [(0, 1.0)]


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


def steps(comm: Any, whats: Sequence[str], layers: Sequence[tuple[str, tuple[int, ...], float]],
          kinds_of: KindsOf = one_kind) -> dict[str, float]:
    """Seconds of an all-reduce by each algorithm, or a step of each scheme, on random gradients (collective).

    Each a median; where ``kinds_of`` tells several kinds of a scheme's steps, the mean of their medians.
    """
    generator = np.random.default_rng(comm.rank)
    n = sum(math.prod(shape) for _, shape, _ in layers)
    flat = generator.standard_normal(n, np.float32)
    return {what: sum(share * typical(call, comm) for call, share in calls(comm, what, flat, layers, kinds_of))
            for what in whats}


def calls(comm: Any, what: str, flat: np.ndarray, layers: Sequence[tuple[str, tuple[int, ...], float]],
          kinds_of: KindsOf = one_kind) -> list[tuple[Callable[[], Any], float]]:
    """A call for each kind of steps, and their share of all; a first step, number 0, has been done."""
    if what in allreduce.names():
        call = partial(comm.Allreduce, None, np.zeros_like(flat), algorithm=what)  # in place, again and again
        timed(call, comm)
        return [(call, 1.0)]
    reducer = Reducer(comm, settled(Scheme.parse(what)))
    gradient = by_array(flat, layers) if needs_arrays(reducer) else flat
    timed(partial(reducer.reduce_sparse, gradient), comm)
    kinds = kinds_of(reducer.scheme)
    return [(partial(step, reducer, gradient, number if len(kinds) > 1 else None), share) for number, share in kinds]


def step(reducer: Reducer, gradient: Any, number: int | None) -> None:
    """A step, of this ``number`` where one is given."""
    if number is not None:
        reducer.step = number
    reducer.reduce_sparse(gradient)


def settled(scheme: Scheme) -> Scheme:
    """The scheme with a memory that stays nearly empty, where thresholds of the step before choose.

    While a memory fills, what waits in it grows from step to step (that of the same gradient as its age), thresholds
    let far too much pass, and each of the first steps estimates them anew. Later ones do so once a period.
    """
    balanced, fills = scheme.part_names["exchange"] == "balanced", scheme.part_names["memory"] == "residual"
    return scheme.replace(beta=HARDLY) if balanced and fills else scheme


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
