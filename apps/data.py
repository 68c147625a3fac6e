"""Two-class data sets by name: LIBSVM text, MATLAB files, and a generator, all with the same result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

import numpy as np

from mpicomp.comm.safety.collective_errors import run_collectively
from mpicomp.errors import CorruptFile, InvalidArgument

from . import libsvm, matfile, synthetic
from .matrix import Matrix

Read = TypeVar("Read", bound=tuple[Any, ...])

# Files that hold more than their official training set, which comes first.
_TRAINING_ROWS = {("madelon.mat", (2600, 500)): 2000}


class Dataset(NamedTuple):
    """Rows of features, and for each row a label of +1.0 or -1.0."""

    name: str
    features: Matrix
    labels: np.ndarray


def load(source: str, rows: int | None = None) -> Dataset:
    """Read or make the data set that ``source`` names.

    Parameters
    ----------
    source : str
        A LIBSVM file (plain, gzip, bzip2, xz), a ``.mat`` file, or ``synthetic:n=2000,d=500,seed=1``.
    rows : int, optional
        Use only the first ``rows`` rows. Default: all; of ``madelon.mat`` the 2000 of the training set.

    Raises
    ------
    CorruptFile, InvalidArgument, MissingExtra
        Naming the place of the fault and what to do.
    """
    features, labels = _read(source)
    name = Path(source).name
    rows = rows or _TRAINING_ROWS.get((name, features.shape), labels.size)
    if rows > labels.size:
        raise InvalidArgument(f"rows must be at most {labels.size}, the rows of {source}, got {rows}")
    kept = np.arange(rows)
    features, labels = features.take(kept), labels[kept]
    _check_finite(features, labels, source)
    return Dataset(name, features, _signs(labels, source))


def share(comm: Any, source: str, rows: int | None = None) -> Dataset:
    """The data set on every rank, read by rank 0 alone (collective): one reader spares the file system.

    Raises
    ------
    The error of ``load``, on every rank.
    """
    return read_once(comm, lambda: load(source, rows))


def read_once(comm: Any, read: Callable[[], Read]) -> Read:
    """The named tuple that ``read()`` gives on rank 0, or the error it raises there, on every rank (collective)."""
    return broadcast(comm, run_collectively(comm, read, comm.rank == 0))


def broadcast(comm: Any, value: Any) -> Any:
    """A tree of tuples, arrays and plain values on rank 0, copied to every rank (collective)."""
    outline = comm.bcast(_outline(value) if comm.rank == 0 else None)
    return _fill(comm, value, outline)


def fingerprint(data: Dataset) -> int:
    """A checksum of all features and labels: to tell that a run resumes on the data it began with."""
    crc = crc32(data.labels.data)
    for part in data.features:
        if isinstance(part, np.ndarray):
            crc = crc32(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data, crc)
    return crc


def _read(source: str) -> tuple[Matrix, np.ndarray]:
    if source.partition(":")[0] == "synthetic":
        return synthetic.generate(source)
    path = Path(source)
    if not path.is_file():
        raise InvalidArgument(
            f"no file {source!r}; give a LIBSVM or .mat file, or synthetic:n=2000,d=500,seed=1 to go without one"
        )
    try:
        return matfile.read(path) if path.suffix == ".mat" else libsvm.read(path)
    except PermissionError as error:
        raise InvalidArgument(f"{source} may not be read: {error.strerror}") from error


def _check_finite(features: Matrix, labels: np.ndarray, source: str) -> None:
    """Refuse NaN and infinity: binary formats can hold them, and one would spoil every gradient."""
    if not np.isfinite(labels).all():
        raise CorruptFile(f"{source}: the label of row {_first(labels) + 1} is not a finite number")
    if not np.isfinite(features.values).all():
        row = _first(features.times(np.ones(features.shape[1])))  # a row's sum is finite only if its features are
        raise CorruptFile(f"{source}: a feature of row {row + 1} is not a finite number; remove or repair the row")


def _first(values: np.ndarray) -> int:
    return int(np.argmin(np.isfinite(values)))


def _signs(labels: np.ndarray, source: str) -> np.ndarray:
    """Labels of +1 for the greater of the two classes and -1 for the smaller."""
    classes = np.unique(labels)
    if classes.size != 2:
        shown = ", ".join(f"{c:g}" for c in classes[:5]) + (", ..." if classes.size > 5 else "")
        raise InvalidArgument(f"{source} must have labels of two classes, got {classes.size}: {shown}")
    return np.where(labels == classes[1], 1.0, -1.0)


def _outline(value: Any) -> Any:
    """``value`` with every array replaced by its shape and dtype: small enough to pickle."""
    if isinstance(value, np.ndarray):
        return _Blank(value.shape, value.dtype.str)
    if isinstance(value, tuple):
        return type(value)._make(map(_outline, value)) if hasattr(value, "_make") else tuple(map(_outline, value))
    return value


class _Blank(NamedTuple):
    shape: tuple[int, ...]
    dtype: str


def _fill(comm: Any, value: Any, outline: Any) -> Any:
    if isinstance(outline, _Blank):
        array = np.ascontiguousarray(value) if comm.rank == 0 else np.empty(outline.shape, outline.dtype)
        comm.broadcast(array.reshape(-1), 0)
        return array
    if isinstance(outline, tuple):
        items = value if comm.rank == 0 else [None] * len(outline)
        filled = [_fill(comm, item, sub) for item, sub in zip(items, outline, strict=True)]
        return type(outline)._make(filled) if hasattr(outline, "_make") else tuple(filled)
    return outline
