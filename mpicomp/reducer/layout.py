"""One flat vector out of an array, or of a dict or list of arrays, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..comm.buffers import check_aligned
from ..errors import BufferRefused, InvalidArgument
from ..ops import knows, ops_for
from ..ops.array_lists import ArrayFacts, ArrayList, adjacent, any_overlap
from ..ops.device import device_of, finish_others
from ..ops.host_arrays import host_array
from ..schemes.values import Mean, Span
from ..types import Array, address, dtype_name, overlap

Arrays = Any  # an array, a mapping of name -> array, or a list or tuple of arrays

# Half precision is computed in float32.
COMPUTE = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}


class Output(NamedTuple):
    """Memory for the mean: the caller's arrays, and these as one flat vector if they are one; or a new vector."""

    arrays: list[Array]
    vector: Array | None


class Bucket:
    """The layout of one group of arrays inside a flat vector: first those to compress, then those that go dense.

    Parameters
    ----------
    grads : array, mapping or sequence of arrays
        Decides names, shapes and dtype (float16, bfloat16, float32 or float64); its values are not kept.
    workers : int
        Above 1, every array has one row a virtual worker: shape (workers, ...).
    rule : str
        Which arrays go dense: ``none``, or some of DENSE_RULES joined by ``+``.
    densities : mapping of name -> float
        The caller's own densities of some arrays; those with 1 go dense.

    Attributes
    ----------
    total, n : int
        Elements of one worker's vector, and of its first part, which is compressed.
    spans : list of (int, int)
        Where each array begins and ends in it.
    tensors : list of (int, int, shape)
        The same for the compressed arrays, in the order of the vector; ``densities`` in that order (None: no wish).
    arrays : str
        Their names and shapes in order, without those of workers.
    signature : str
        What all ranks must have in common.
    ops : module
        The operations of the arrays' device.

    Raises
    ------
    BufferRefused, InvalidArgument
        Naming the array, the expected and the given value.
    """

    def __init__(self, grads: Arrays, workers: int, rule: str = "none",
                 densities: Mapping[str, float] | None = None) -> None:
        self.form, arrays = _form(grads)
        self.workers = workers
        self.names = list(arrays)
        for name, array in arrays.items():
            if not isinstance(name, str):
                raise InvalidArgument(f"the names of arrays must be texts, got {name!r}")
            _check(name, array, workers)
        dtypes = sorted({array.dtype.name for array in arrays.values()})
        if len(dtypes) != 1:
            raise InvalidArgument(f"the arrays of one step must share one dtype, got {', '.join(dtypes) or 'none'}")
        first = next(iter(arrays.values()))
        self.dtype, self.dtype_name = first.dtype, dtypes[0]  # NumPy works a dtype's name out anew at every use
        self.compute = np.dtype(COMPUTE[self.dtype_name])
        self.shapes = [self._own(array) for array in arrays.values()]
        self._read_facts = ArrayFacts(list(arrays.values()))  # of gradients that need no validation
        self._out_facts = ArrayFacts([])  # of the latest ``out`` that was validated
        self._lay_out(rule, densities or {})
        self.ops = ops_for(first)
        self.arrays = ", ".join(f"{name}{list(shape)}" for name, shape in zip(self.names, self.shapes, strict=True))
        # A rank with device memory does otherwise: its long vectors are not cut into buckets.
        where = "" if isinstance(first, np.ndarray | np.generic) else " on a device"
        self.signature = f"{self.dtype_name}{where} {self.arrays}"

    def _lay_out(self, rule: str, densities: Mapping[str, float]) -> None:
        """Give every array its place."""
        if unknown := sorted(set(densities) - set(self.names)):
            raise InvalidArgument(f"densities must name arrays among {', '.join(self.names)}, got {', '.join(unknown)}")
        dense = {i for i, name in enumerate(self.names) if densities.get(name) == 1 or self._goes_dense(i, rule)}
        packed = [i for i in range(len(self.names)) if i not in dense]
        self.spans, at = [(0, 0)] * len(self.names), 0
        self._order = [*packed, *sorted(dense)]
        for i in self._order:
            self.spans[i] = at, at + math.prod(self.shapes[i])
            at = self.spans[i][1]
        self.total, self.n = at, self.spans[packed[-1]][1] if packed else 0
        self.tensors = [(*self.spans[i], self.shapes[i]) for i in packed]
        self.densities = [densities.get(self.names[i]) for i in packed]

    def _goes_dense(self, i: int, rule: str) -> bool:
        """True if a rule names array ``i``."""
        lower, words = self.names[i].lower(), rule.split("+")
        return (
            ("first" in words and i == 0)
            or ("last" in words and i == len(self.names) - 1)
            or ("1d" in words and len(self.shapes[i]) <= 1)
            or ("norm" in words and any(part in lower for part in ("norm", "bn", "bias")))
        )

    def read(self, grads: Arrays) -> list[Array] | None:
        """The arrays of ``grads``, in their order; None if this layout does not describe them.

        Refuses buffers that cannot be read as they are.
        """
        listed = self._listed(grads)
        known = None if listed is None else self._read_facts.listed(listed)
        if known is not None:
            return known
        form, named = _form(grads)
        for name, array in named.items():
            _check(name, array, self.workers)
        arrays = list(named.values())
        fits = (
            form == self.form and list(named) == self.names
            and [self._own(array) for array in arrays] == self.shapes
            and all(array.dtype == self.dtype for array in arrays)
        )
        if not fits:
            return None
        self._read_facts = ArrayFacts(arrays)
        return self._read_facts.listed(arrays) or arrays

    def _listed(self, grads: Arrays) -> list[Array] | None:
        """The arrays of ``grads`` if it is of the layout's form, with its names in their order."""
        kind = type(grads)
        if kind is dict:
            return list(grads.values()) if self.form == "dict" and list(grads) == self.names else None
        if kind is list or kind is tuple:
            return list(grads) if self.form == "list" else None
        return [grads] if self.form == "array" else None

    def flatten(self, arrays: list[Array]) -> list[Array]:
        """One flat vector per worker, in the dtype of computation: a view if nothing has to be moved."""
        rows = [[array[w] for array in arrays] for w in range(self.workers)] if self.workers > 1 else [arrays]
        if len(arrays) == 1 and self.compute == self.dtype:
            return [row[0].reshape(-1) for row in rows]
        vector = self._common_vector(arrays)
        if vector is not None:
            return [vector]
        return [self._pack(row) for row in rows]

    def write(self, mean: Mean, out: Output) -> None:
        """Write a mean into the caller's memory."""
        if out.vector is not None:
            mean.dense(self.ops, out.vector)
        elif mean.indices is None:
            self.ops.unpack(mean.values, self._in_order(out.arrays))
        else:
            self.ops.unpack_sparse(mean.indices, mean.values, self._in_order(out.arrays))

    def unflatten(self, flat: Array, like: Arrays = None) -> Arrays:
        """``flat`` in the layout's shapes and dtype, as views of it or fresh arrays in a structure ``like`` the
        gradients'.
        """
        parts = [flat[start:stop].reshape(shape) for (start, stop), shape in zip(self.spans, self.shapes, strict=True)]
        parts = [part.astype(self.dtype, copy=False) for part in parts]
        if self.form == "array":
            return parts[0]
        if self.form == "dict":
            return dict(zip(self.names, parts, strict=True))
        return as_given(parts, type(like))

    def flat_view(self, arrays: list[Array]) -> Array | None:
        """``arrays`` as one flat vector; None unless they are one in the dtype of computation."""
        vector = self._common_vector(arrays) if len(arrays) > 1 else None
        if vector is not None:
            return vector
        if len(arrays) > 1 or self.compute != self.dtype or not arrays[0].flags.c_contiguous:
            return None
        return arrays[0].reshape(-1)

    def target(self, arrays: list[Array], flat: list[Array], there: Array | None) -> Array | None:
        """Memory for the mean of one worker's vector ``flat``, which may be that vector's.

        ``there``, which is ``out`` as one vector, else ``flat`` if it is not the memory of ``arrays``; none that
        overlaps it in part.
        """
        vector, *others = flat
        if others or self.total > self.n:
            return None
        if there is None:
            return None if any_overlap(arrays, vector) else vector
        return there if not overlap(there, vector) or address(there) == address(vector) else None

    def read_out(self, out: Arrays) -> Output:
        """Refuse an ``out`` that does not have the layout of one worker's gradients, or cannot be written."""
        listed = self._listed(out)
        known = None if listed is None else self._out_facts.listed(listed, written=True)
        if known is not None:
            return Output(known, self.flat_view(known))
        form, arrays = _form(out)
        if (form, list(arrays)) != (self.form, self.names):
            raise BufferRefused(f"out must be given as the gradients are, {self.form} of {', '.join(self.names)} in "
                                f"this order; got {form} of {', '.join(map(str, arrays))}")
        for name, array in arrays.items():
            check_aligned(array, "out" if form == "array" else f"out: {name}")
            if not getattr(array.flags, "writeable", True):
                raise BufferRefused(f"out must be writable, but {name} is read-only")
        got = [(tuple(array.shape), array.dtype) for array in arrays.values()]
        expected = [(shape, self.dtype) for shape in self.shapes]
        if got != expected:
            raise BufferRefused(f"out must have the gradients' shapes and dtype {expected}, got {got}")
        listed = list(arrays.values())
        self._out_facts = ArrayFacts(listed)
        listed = self._out_facts.listed(listed) or listed
        return Output(listed, self.flat_view(listed))

    def new_out(self) -> Output:
        """New memory for the mean, in the dtype of computation."""
        return Output([], self.ops.empty(self.total, self.compute))

    def spans_of(self, names: Iterable[str]) -> tuple[list[Span], list[Span]]:
        """Begins and ends of arrays: in the compressed vector, and in that of the arrays that go dense."""
        places = dict(zip(self.names, self.spans, strict=True))
        if unknown := sorted(set(names) - set(places)):
            raise InvalidArgument(f"arrays must be among {', '.join(self.names)}, got {', '.join(unknown)}")
        spans = [places[name] for name in names]
        return ([span for span in spans if span[0] < self.n],
                [(start - self.n, stop - self.n) for start, stop in spans if start >= self.n])

    def where(self, index: int) -> str:
        """The name of the array, and the place in it, of one element of the flat vector."""
        for name, shape, (start, stop) in zip(self.names, self.shapes, self.spans, strict=True):
            if start <= index < stop:
                place = tuple(int(i) for i in np.unravel_index(index - start, shape))
                return f"{name}{list(place)}"
        raise IndexError(index)

    def _common_vector(self, arrays: list[Array]) -> Array | None:
        """The vector that arrays are views of, where they lie in it as this layout has them; else None."""
        some = next((i for i, array in enumerate(arrays) if array.size), None)
        if some is None or self.workers > 1:
            return None
        base: Any = getattr(arrays[some], "base", None)
        if type(base) is not type(arrays[some]):  # also memory that another library owns
            return None
        if base.ndim != 1 or not base.flags.c_contiguous or not base.dtype == self.compute == self.dtype:
            return None
        starts = [start for start, _ in self.spans]
        if not adjacent(arrays, starts):
            return None
        origin = address(arrays[some]) - starts[some] * base.itemsize
        first = (origin - address(base)) // base.itemsize
        vector = base[first : first + self.total] if first >= 0 else base[:0]
        return vector if vector.size == self.total and address(vector) == origin else None

    def _own(self, array: Array) -> tuple[int, ...]:
        return tuple(array.shape[1:] if self.workers > 1 else array.shape)

    def _pack(self, arrays: list[Array]) -> Array:
        flat = self.ops.empty(self.total, self.compute)
        self.ops.pack(self._in_order(arrays), flat)
        return flat

    def _in_order(self, arrays: list[Array]) -> list[Array]:
        """Arrays as they follow each other in the vector."""
        if self.n == self.total:
            return arrays
        if isinstance(arrays, ArrayList):
            return arrays.chosen(self._order)
        return [arrays[i] for i in self._order]


def as_given(parts: list[Array], kind: type) -> Arrays:
    """A list of arrays as a list, tuple or named tuple."""
    if hasattr(kind, "_make"):
        return kind._make(parts)
    return tuple(parts) if issubclass(kind, tuple) else parts


def _form(grads: Arrays) -> tuple[str, dict[str, Array]]:
    """Form of ``grads``, and its arrays by name."""
    if isinstance(grads, Mapping):
        return "dict", {name: _taken(name, array) for name, array in grads.items()}
    if isinstance(grads, list | tuple):
        named = ((f"gradient {i}", array) for i, array in enumerate(grads))
        return "list", {name: _taken(name, array) for name, array in named}
    return "array", {"gradient": _taken("gradient", grads)}


def _taken(name: str, array: Any) -> Array:
    """``array`` as one of NumPy or CuPy, on the same memory; other libraries' are read through DLPack."""
    if type(array) is np.ndarray or (not isinstance(array, np.ndarray) and knows(array)):
        return array
    device = device_of(array)
    if device is not None:
        finish_others(array, device)
        return device.own(array)
    found = host_array(array, name)
    if found is None:
        raise BufferRefused(f"{name} must be an array of NumPy, CuPy or a library that speaks DLPack, "
                            f"got {type(array).__name__}")
    return found.named()


def _check(name: str, array: Array, workers: int) -> None:
    """Refuse what cannot be read as one run of native numbers."""
    if dtype_name(array.dtype) not in COMPUTE:
        raise BufferRefused(f"{name} must be one of {', '.join(COMPUTE)}, got {array.dtype}")
    if not array.dtype.isnative:
        raise BufferRefused(f"{name} must be in native byte order, got {array.dtype.str}: use astype")
    if not array.flags.c_contiguous:
        raise BufferRefused(f"{name} must be C-contiguous, got strides {array.strides}: use numpy.ascontiguousarray")
    check_aligned(array, name)
    if workers > 1 and (array.ndim < 1 or array.shape[0] != workers):
        raise BufferRefused(f"{name} must have one row for each of {workers} workers, got shape {tuple(array.shape)}")
