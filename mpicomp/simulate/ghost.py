"""Arrays without elements: the real schedules, selectors, codecs and exchanges run on these.

Every length on the way, and so every message, is theirs.
"""

from __future__ import annotations

from typing import NoReturn, Protocol, SupportsInt, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..errors import MpicompError
from ..types import Array
from .index_spacing import Spread

DTYPES = {type(np.dtype(name)) for name in "?bBhHiIlLqQefd"}  # what np.dtype need not look at again
NO_LISTS: frozenset[object] = frozenset()


class Unknown(MpicompError):
    """Something asked for elements that a simulation does not have."""


class Sized(Protocol):
    """An array, with elements or without."""

    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=Sized)


class CountsCopies(Protocol):
    """Operations of a ghost (``GhostOps``), as far as it calls them."""

    def copied(self, ghost: S) -> S: ...


class Ghost:
    """Length and type of a flat array.

    Some ghosts know more: ``head``, leading elements; ``spread``, how a list of indices lies over the vector,
    or where in it an array's elements stand; ``lists``, the lists that it is the union of.
    """

    __slots__ = ("dtype", "head", "lists", "ops", "size", "spread")

    def __init__(self, ops: CountsCopies, size: int, dtype: npt.DTypeLike, head: np.ndarray | None = None,
                 spread: Spread | None = None) -> None:
        self.ops, self.size, self.head, self.spread = ops, size, head, spread
        self.lists = NO_LISTS
        self.dtype: np.dtype = dtype if dtype.__class__ in DTYPES else np.dtype(dtype)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.size

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("_") and hasattr(np.ndarray, name):
            raise Unknown(f"arrays have no elements, got a request for their {name}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getitem__(self, key: object) -> Ghost | np.ndarray:
        if isinstance(key, slice):
            start, stop, _ = key.indices(self.size)
            if self.head is not None and start == 0 and stop <= self.head.size:
                return self.head[:stop]
            size = stop - start if stop > start else 0
            spread = self.spread and (self.spread if size == self.size else self.spread.cut(start, start + size))
            return Ghost(self.ops, size, self.dtype, None if start else self.head, spread)
        if isinstance(key, (Ghost, np.ndarray)) and key.dtype.kind in "iub":
            return self.ops.copied(self._chosen(key))
        raise Unknown(f"arrays have no elements to read, got the index {key!r}")

    def _chosen(self, key: Ghost | np.ndarray) -> Ghost:
        """Return the elements at positions; of those for which ``key`` is true, all."""
        if self.spread is None:
            return Ghost(self.ops, key.size, self.dtype)
        if isinstance(key, np.ndarray):
            return Ghost(self.ops, key.size, self.dtype, self.spread.at(key).astype(self.dtype))
        spread = self.spread if key.dtype.kind == "b" else key.spread and self.spread.chosen(key.spread)
        return Ghost(self.ops, key.size, self.dtype, spread=spread)

    def __setitem__(self, key: object, value: object) -> None:
        self.ops.copied(self if key is ... else self[key])

    def astype(self, dtype: npt.DTypeLike, copy: bool = True) -> Ghost:
        if not copy and np.dtype(dtype) == self.dtype:
            return self
        return self.ops.copied(Ghost(self.ops, self.size, dtype, spread=self.spread))

    def copy(self) -> Ghost:
        return self.astype(self.dtype)

    __abs__ = copy

    def __add__(self, other: Ghost | SupportsInt) -> Ghost:
        moved = self.copy()
        moved.spread = self.spread.moved(int(other)) if self.spread and not isinstance(other, Ghost) else None
        return moved

    __iadd__ = __add__

    def __sub__(self, other: Ghost | SupportsInt) -> Ghost:
        return self + (other if isinstance(other, Ghost) else -int(other))

    def __eq__(self, other: object) -> Ghost:  # type: ignore[override]  # element by element, as an array's
        """Compare element by element; all are assumed to be true, as those of `!=` are."""
        return self.ops.copied(Ghost(self.ops, self.size, np.bool_))

    __ne__ = __eq__  # type: ignore[assignment]

    def _computed(self, *_others: object) -> NoReturn:
        raise Unknown("arrays have no elements to compute with; use operations of ctx.ops, as in ctx.ops.scale(x, 0.5)")

    __mul__ = __rmul__ = __imul__ = __truediv__ = __rtruediv__ = __itruediv__ = __isub__ = __radd__ = _computed
    __rsub__ = __neg__ = __pow__ = __lt__ = __le__ = __gt__ = __ge__ = __float__ = _computed
    __hash__ = object.__hash__

    def all(self) -> bool:
        return True

    def view(self, dtype: npt.DTypeLike) -> Ghost:
        if np.dtype(dtype) == self.dtype:
            return self
        head = None if self.head is None else self.head.view(dtype)
        return Ghost(self.ops, self.nbytes // np.dtype(dtype).itemsize, dtype, head)

    def min(self) -> float:
        return 1.0


class Tiled(Ghost):
    """One message after the other, all as long as the first, which stands for each of them."""

    __slots__ = ("message",)

    def __init__(self, message: Ghost, times: int) -> None:
        super().__init__(message.ops, message.size * times, message.dtype)
        self.message = message

    def __getitem__(self, key: object) -> Ghost | np.ndarray:
        if isinstance(key, slice):
            start, stop, _ = key.indices(self.size)
            length = self.message.size
            if length and start % length == 0 and stop - start == length:
                return self.message
        return super().__getitem__(key)


def as_array(ghost: Ghost) -> Array:
    """Return the ghost, for code that takes arrays."""
    return cast(Array, ghost)


def as_ghost(array: Array) -> Ghost:
    """Return the ghost that simulated code holds as an array."""
    return cast(Ghost, array)
