"""One state in one HDF5 file, written once and read without trusting it.

A state is two levels of names: ``{"model": {"w0": array, ...}, "optimizer": {"step": 7, "momentum/w0": array}}``. Its
arrays are datasets ``/arrays/model/w0``, contiguous and without filters; everything else is one JSON text in
``/values``. A file that claims anything else (links, external or virtual data, filters, objects) is refused, so that
reading takes no more memory than the file is long.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import h5py
import numpy as np

from .._util.atomic_files import fsync
from ..errors import DAMAGE, CorruptFile, InvalidArgument, MpicompError
from ..ops import ops_for

State = Mapping[str, Mapping[str, Any]]

ARRAYS, VALUES = "arrays", "values"
DEPTH = 16  # levels of names that are followed
KINDS = "biufc"  # of dtypes: bool, integers, floats, complex
READ_BYTES = 1 << 24


def split(state: State) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
    """The arrays of a state by ``section/name``, on the host, and its plain values by section and name.

    Raises
    ------
    InvalidArgument
        For a name that HDF5 would read as a path, and for values that are neither numbers, texts nor arrays of them.
    """
    arrays: dict[str, np.ndarray] = {}
    values: dict[str, dict[str, Any]] = {}
    for section, entries in state.items():
        values[section] = {}
        for name, value in entries.items():
            if hasattr(value, "dtype"):
                arrays[_checked(f"{section}/{name}")] = _on_host(value, f"{section}/{name}")
            else:
                values[section][name] = value
    return arrays, values


def _checked(name: str) -> str:
    if {"", ".", ".."} & set(name.split("/")):
        raise InvalidArgument(f"no part of a saved array's name may be empty, '.' or '..', got {name!r}")
    return name


def _on_host(value: Any, name: str) -> np.ndarray:
    array = np.asarray(value if isinstance(value, np.ndarray | np.generic) else ops_for(value).to_host(value))
    if array.dtype.kind not in KINDS:
        raise InvalidArgument(f"{name} must be an array of numbers that HDF5 knows, got {array.dtype}: view it as one")
    return array


def to_json(values: Any) -> str:
    try:
        return json.dumps(values, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"a checkpoint holds arrays, numbers, texts, lists and dicts of them: {error}") from None


def digest(state: State) -> int:
    """A checksum of a state's names, shapes, dtypes and contents."""
    arrays, values = split(state)
    crc = crc32(to_json(values).encode())
    for name, array in sorted(arrays.items()):
        crc = crc32(f"{name}{array.shape}{array.dtype.str}".encode(), crc)
        crc = crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, crc)
    return crc


def write(path: Path, state: State) -> tuple[int, int]:
    """Write a new file and wait until it is on the disk; its bytes and their CRC-32.

    Raises
    ------
    InvalidArgument
        The state cannot be written, see ``split``.
    MpicompError
        The disk would not take it.
    """
    arrays, values = split(state)
    text = np.frombuffer(to_json(values).encode(), np.uint8)
    try:
        with h5py.File(path, "x") as file:
            for name, array in arrays.items():
                file.create_dataset(f"{ARRAYS}/{name}", data=array)
            file.create_dataset(VALUES, data=text)
        fsync(path)
        return checksum(path)
    except (OSError, RuntimeError, ValueError) as error:  # h5py raises the last two for a full disk and clashing names
        raise MpicompError(f"cannot write {path}: {' '.join(str(error).split())}") from error


def checksum(path: Path) -> tuple[int, int]:
    """Bytes and CRC-32 of a file."""
    nbytes = crc = 0
    with open(path, "rb") as file:
        while block := file.read(READ_BYTES):
            nbytes, crc = nbytes + len(block), crc32(block, crc)
    return nbytes, crc


def verified(path: Path, nbytes: int, crc: int) -> bytes:
    """The bytes of a file that has to have this length and CRC-32."""
    check_size(path, nbytes)
    data = path.read_bytes()
    if crc32(data) != crc:
        raise CorruptFile(f"{path} is damaged: its checksum is not the one it was written with")
    return data


def verify(path: Path, nbytes: int, crc: int) -> None:
    """As ``verified``, without keeping the bytes."""
    check_size(path, nbytes)
    if checksum(path)[1] != crc:
        raise CorruptFile(f"{path} is damaged: its checksum is not the one it was written with")


def check_size(path: Path, nbytes: int) -> None:
    """Refuse, before anything is read, a file that is not there or not whole."""
    if not path.is_file():
        raise CorruptFile(f"{path} is missing")
    if path.stat().st_size != nbytes:
        raise CorruptFile(f"{path} is damaged: expected {nbytes} bytes, got {path.stat().st_size}")


def read(data: bytes, path: Path) -> dict[str, dict[str, Any]]:
    """The state in the bytes of a file; ``path`` is for the errors' texts.

    Raises
    ------
    CorruptFile
        They are no such state.
    """
    with _reading(path), h5py.File(io.BytesIO(data), "r") as file:
        state: dict[str, dict[str, Any]] = json.loads(_values(file, VALUES, path).tobytes())
        total = 0
        for name, array in _walk(_group(file, ARRAYS, path), "", path) if ARRAYS in file else ():
            section, _, rest = name.partition("/")
            state[section][rest], total = array, total + array.nbytes
            if total > len(data):
                raise CorruptFile(f"{path} names the same data several times")
        return state


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except CorruptFile:
        raise
    except DAMAGE as error:
        raise CorruptFile(f"{path} is no state of a checkpoint: {' '.join(str(error).split())}") from error


def _walk(group: h5py.Group, prefix: str, path: Path, depth: int = 0) -> Iterator[tuple[str, np.ndarray]]:
    if depth > DEPTH:
        raise CorruptFile(f"{path} has names of more than {DEPTH} parts")
    for name in group:
        if _is_hard(group, name) and isinstance(group[name], h5py.Group):
            yield from _walk(_group(group, name, path), f"{prefix}{name}/", path, depth + 1)
        else:
            yield prefix + name, _values(group, name, path)


def _is_hard(group: h5py.Group, name: str) -> bool:
    """Whether a name stands for something in this very file, and not for a path or another file."""
    return group.get(name, getclass=True, getlink=True) is h5py.HardLink


def _group(parent: h5py.Group, name: str, path: Path) -> h5py.Group:
    if not _is_hard(parent, name) or not isinstance(parent[name], h5py.Group):
        raise CorruptFile(f"{path}: {name} must be a group, got a link or a dataset")
    return parent[name]


def _values(parent: h5py.Group, name: str, path: Path) -> np.ndarray:
    """The numbers of a dataset that has all its bytes in this file, as they are."""
    if not _is_hard(parent, name) or not isinstance(parent[name], h5py.Dataset):
        raise CorruptFile(f"{path}: {name} must be a dataset, got a link or a group")
    data = parent[name]
    plain = data.dtype.kind in KINDS and not data.is_virtual and not data.external
    if not plain or data.id.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS:
        raise CorruptFile(f"{path}: {name} must be plain contiguous numbers, got {data.dtype} in another form")
    if data.id.get_storage_size() != data.size * data.dtype.itemsize:
        raise CorruptFile(f"{path}: {name} claims {data.size} elements, which the file does not hold")
    return data[()] if data.shape else np.array(data[()])
