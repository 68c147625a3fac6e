"""Times of real steps, to check predictions: MPI's own all-reduce, dense algorithms, schemes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from .. import allreduce
from ..reducer.reducer import Reducer
from ..schemes.registry import Scheme
from .probe import timed, typical

if TYPE_CHECKING:
    from ..comm.comm import Comm

NATIVE_S = 1.0  # target for one call of MPI's own all-reduce; of longer vectors a part is timed
FIRST_BYTES = 1 << 20
HARDLY = 2.0**-20  # beta of a memory that stays nearly empty

Layers = Sequence[tuple[str, tuple[int, ...], float]]  # name, shape, FLOPs

KindsOf = Callable[[Scheme], Sequence[tuple[int, float]]]  # the number of a step, and the share of steps of its kind


def one_kind(scheme: Scheme) -> Sequence[tuple[int, float]]:
    """The kinds of a scheme's steps if all are alike."""
    return [(0, 1.0)]


def native(comm: Comm, n: int) -> tuple[float, str]:
    """Seconds of MPI's all-reduce of ``n`` float32, and a remark on the measurement (collective)."""
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


def steps(comm: Comm, names: Sequence[str], layers: Layers, kinds_of: KindsOf = one_kind) -> dict[str, float]:
    """Seconds of an all-reduce by each algorithm, or of a step of each scheme, on random gradients (collective).

    Each is a median; for a scheme with several ``kinds_of`` steps, the mean of their medians.
    """
    generator = np.random.default_rng(comm.rank)
    n = sum(math.prod(shape) for _, shape, _ in layers)
    flat = generator.standard_normal(n, np.float32)
    return {name: sum(share * typical(call, comm) for call, share in calls(comm, name, flat, layers, kinds_of))
            for name in names}


def calls(comm: Comm, name: str, flat: np.ndarray, layers: Layers, kinds_of: KindsOf = one_kind
          ) -> list[tuple[Callable[[], object], float]]:  # fmt: skip
    """A call per kind of step, and the share of that kind; step 0 is executed here."""
    if name in allreduce.names():
        call = partial(comm.Allreduce, None, np.zeros_like(flat), algorithm=name)  # in place, again and again
        timed(call, comm)
        return [(call, 1.0)]
    reducer = Reducer(comm, settled(Scheme.parse(name)))
    gradient = by_array(flat, layers) if needs_arrays(reducer) else flat
    timed(partial(reducer.reduce_sparse, gradient), comm)
    kinds = kinds_of(reducer.scheme)
    return [(partial(step, reducer, gradient, number if len(kinds) > 1 else None), share) for number, share in kinds]


def step(reducer: Reducer, gradient: np.ndarray | dict[str, np.ndarray], number: int | None) -> None:
    """Execute a step, as step ``number`` if one is given."""
    if number is not None:
        reducer.step = number
    reducer.reduce_sparse(gradient)


def settled(scheme: Scheme) -> Scheme:
    """The scheme, with a memory that stays nearly empty if it selects by thresholds of the step before.

    While a memory fills, its values grow from step to step (with the same gradient in proportion to their age):
    thresholds let far too many pass, and each of the first steps estimates them again. Later steps do so once per
    period.
    """
    balanced, fills = scheme.part_names["exchange"] == "balanced", scheme.part_names["memory"] == "residual"
    return scheme.replace(beta=HARDLY) if balanced and fills else scheme


def needs_arrays(reducer: Reducer) -> bool:
    """True if a scheme treats arrays one by one; otherwise one vector avoids packing them."""
    parts = reducer.scheme.part_names
    return (reducer.scheme.options["layers"] == "per-tensor" or parts["exchange"] == "low-rank"
            or parts["codec"] not in ("float", "levels"))


def by_array(flat: np.ndarray, layers: Layers) -> dict[str, np.ndarray]:
    """The flat gradient as arrays by name."""
    ends = np.cumsum([math.prod(shape) for _, shape, _ in layers])
    parts = zip(layers, np.split(flat, ends[:-1]), strict=True)
    return {name: part.reshape(shape) for (name, shape, _), part in parts}
