"""Which values share a scale: bounds of groups, worked out alike by sender and receiver.

Bounds ascend from 0 to the number of values, int64; no group is empty, but no values at all are one empty group.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from ...ops.protocol import Ops
from ...types import Array
from ..interfaces import StepContext
from ..values import Place

Tensor = tuple[int, int, tuple[int, ...]]  # begin, end, shape


def tensor_starts(tensors: Sequence[Tensor]) -> np.ndarray:
    """First element of each tensor."""
    return np.array([begin for begin, _, _ in tensors], np.int64)


def column_starts(tensors: Sequence[Tensor], longest: int) -> np.ndarray:
    """First element of each column: the weights of one output unit, (out, ...) has ``out``; a vector is one column.

    Columns over ``longest`` elements are cut.
    """
    starts = [np.empty(0, np.int64)]
    for begin, end, shape in tensors:
        columns = shape[0] if len(shape) > 1 and end > begin else 1
        cuts = np.arange(0, (end - begin) // columns, longest, dtype=np.int64)
        firsts = begin + np.arange(columns, dtype=np.int64) * ((end - begin) // columns)
        starts.append((firsts[:, None] + cuts).ravel())
    return np.concatenate(starts)


def within(starts: np.ndarray, start: int, stop: int) -> np.ndarray:
    """The bounds that ascending group beginnings (of the whole vector) make in ``[start, stop)``, from ``start`` on."""
    first, last = np.searchsorted(starts, start, "right"), np.searchsorted(starts, stop, "left")
    inner = np.unique(starts[first:last])
    return np.concatenate([[start], inner, [stop]]).astype(np.int64) - start


def by_length(size: int, length: int) -> np.ndarray:
    """Groups of ``length`` values, the last of what is left."""
    return np.array([*range(0, max(1, size), length), size], np.int64)


def of_list(indices: Array, tensors: Sequence[Tensor], ops: Ops) -> np.ndarray:
    """The bounds that tensors make in a list of indices: one group for each tensor that has any."""
    positions = ops.positions_of(indices, [end for _, end, _ in tensors])
    inner = np.unique(np.array(positions, np.int64))
    return np.concatenate([[0], inner[(inner > 0) & (inner < indices.size)], [indices.size]]).astype(np.int64)


def bounds_by(name: Hashable, starts: Callable[[], np.ndarray], place: Place, ctx: StepContext) -> Array:
    """The groups of a place on the device: by ``starts()`` if it is dense (kept under ``name``), else by tensor."""
    indices = place.indices
    if indices is not None:
        return place.once("groups", lambda: ctx.ops.group_bounds(of_list(indices, ctx.tensors, ctx.ops)))
    key = ("groups", name, place.start, place.stop)
    everywhere = ctx.of_layout(("starts", name), starts)  # once for the places of all pieces
    return ctx.of_layout(key, lambda: ctx.ops.group_bounds(within(everywhere, place.start, place.stop)))


def bounds_by_tensor(place: Place, ctx: StepContext) -> Array:
    """One group a tensor."""
    return bounds_by("tensors", lambda: tensor_starts(ctx.tensors), place, ctx)


def bounds_by_length(length: int, place: Place, ctx: StepContext) -> Array:
    """Groups of ``length`` neighbours among the values sent."""
    def make() -> Array:
        return ctx.ops.group_bounds(by_length(place.size, length))

    if place.indices is not None:
        return place.once(("groups", length), make)
    return ctx.of_layout(("groups", length, place.size), make)


def bounds_of_one(size: int, ctx: StepContext) -> Array:
    """All of so many values in one group; kept if they are the whole vector."""
    def make() -> Array:
        return ctx.ops.group_bounds(np.array([0, size], np.int64))

    return ctx.of_layout("one group", make) if size == ctx.n else make()


def peak(values: Array, ctx: StepContext) -> float:
    """The largest magnitude, 0 for none."""
    largest = ctx.ops.empty(1, values.dtype)
    ctx.ops.group_norms(values, bounds_of_one(values.size, ctx), "max", largest)
    return float(ctx.ops.to_host(largest)[0])
