"""A state in an HDF5 file, written once and read without trusting it.

A state is two levels of names: ``{"model": {"w0": array, ...}, "optimizer": {"step": 7, "momentum/w0": array}}``. Its
arrays are datasets ``/arrays/model/w0``, contiguous and without filters; everything else is one JSON text in
``/values``, with the names of the arrays for their order. Any other contents are refused, so that reading takes no more
memory than the file is long.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from zlib import crc32

import h5py
import numpy as np

from .._util import hdf5
from .._util.atomic_files import fsync
from ..errors import CorruptFile, InvalidArgument, MpicompError
from ..ops import ops_for
from . import folder

if TYPE_CHECKING:
    from ..types import Array

State: TypeAlias = Mapping[str, Mapping[str, object]]  # to be saved: arrays, and values that JSON can hold
Sections: TypeAlias = dict[str, dict[str, Any]]  # a state that was read

ARRAYS, VALUES = "arrays", "values"
KINDS = "biufc"  # of dtypes: bool, integers, floats, complex
LONG_DOUBLES = "gG"  # NumPy's characters of longdouble and clongdouble
READ_BYTES = 1 << 24
_DEEPEST = 16  # levels of names below a section
_RULES = hdf5.Rules(levels=_DEEPEST + 2, kinds=KINDS, columns=False)


def split(state: State) -> tuple[dict[str, np.ndarray], dict[str, dict[str, object]]]:
    """The arrays of a state by ``section/name``, on the host, and its plain values by section and name.

    Raises
    ------
    InvalidArgument
        For a state without sections, for names that the file could not give back as they are, for arrays of long
        doubles, and of other dtypes than numbers.
    """
    _check_levels(state)
    arrays: dict[str, np.ndarray] = {}
    values: dict[str, dict[str, object]] = {}
    for section, entries in state.items():
        if "/" in section:
            raise InvalidArgument(f"the name of a section or a reducer may hold no '/', got {section!r}")
        values[section] = {}
        for name, value in entries.items():
            if not hasattr(value, "dtype"):
                values[section][name] = value
                continue
            path = f"{section}/{name}"
            if {"", ".", ".."} & set(path.split("/")):
                raise InvalidArgument(f"no part of a saved array's name may be empty, '.' or '..', got {path!r}")
            if "\0" in path:  # HDF5 would end the name there
                raise InvalidArgument(f"a saved array's name may hold no NUL, got {path!r}")
            if path.count("/") > _DEEPEST:
                raise InvalidArgument(f"a saved array's name may hold {_DEEPEST - 1} '/' at most, got {name!r}")
            arrays[path] = _on_host(cast(np.ndarray, value), path)
    for path in arrays:
        if above := [str(one) for one in PurePosixPath(path).parents if str(one) in arrays]:
            raise InvalidArgument(f"no saved array's name may go on that of another one after a '/', got {path!r} "
                                  f"beside {above[0]!r}")
    return arrays, values


def _check_levels(state: object) -> None:
    if not isinstance(state, Mapping):
        raise InvalidArgument(f"a state must be a dict of sections, got {type(state).__name__}: give "
                              '{"model": {"weight": array}}')
    for section, entries in state.items():
        if not isinstance(section, str) or not isinstance(entries, Mapping):
            raise InvalidArgument("a state must be a dict of sections with texts as names, each a dict, got "
                                  f"{section!r}: {type(entries).__name__}: give {{'model': {{'weight': array}}}}")


def _on_host(value: Array, name: str) -> np.ndarray:
    array = np.asarray(value if isinstance(value, np.ndarray | np.generic) else ops_for(value).to_host(value))
    if array.dtype.kind not in KINDS:
        raise InvalidArgument(f"{name} must be an array of numbers that HDF5 knows, got {array.dtype}: view it as one")
    if array.dtype.char in LONG_DOUBLES:
        raise InvalidArgument(f"{name} must not be {array.dtype}, whose unused bytes differ between ranks: convert it "
                              "to float64 or complex128")
    return array


def _to_json(values: object, sort_keys: bool) -> bytes:
    try:
        return json.dumps(folder.as_read(values), sort_keys=sort_keys).encode()
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"a checkpoint holds arrays, numbers, texts, lists and dicts of them: {error}") from None


def digest(state: State) -> int:
    """A checksum of a state's names, shapes, dtypes and contents."""
    arrays, values = split(state)
    crc = crc32(_to_json(values, sort_keys=True))
    for name, array in sorted(arrays.items()):
        crc = crc32(f"{name}{array.shape}{array.dtype.str}".encode(), crc)
        crc = crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, crc)
    return crc


def write(path: Path, state: State) -> tuple[int, int]:
    """Write a new file, wait until it is on the disk, and return its bytes and their CRC-32.

    Raises
    ------
    InvalidArgument
        The state cannot be written, see ``split``.
    MpicompError
        The file system refused.
    """
    arrays, values = split(state)
    # The names of arrays stand among the values, for the order in which a state was given.
    ordered = {section: {name if name in values[section] else f"{name}": values[section].get(name) for name in entries}
               for section, entries in state.items()}
    text = np.frombuffer(_to_json(ordered, sort_keys=False), np.uint8)
    try:
        with hdf5.creating(path) as file:
            for name, array in arrays.items():
                file.create_dataset(f"{ARRAYS}/{name}", data=array)
            file.create_dataset(VALUES, data=text)
        fsync(path)
        return checksum(path)
    except (OSError, RuntimeError, ValueError) as error:  # h5py raises the last two for clashing names
        reason = isinstance(error, OSError) and error.strerror
        raise MpicompError(f"cannot write {path}: {reason or ' '.join(str(error).split())}") from error


def checksum(path: Path) -> tuple[int, int]:
    """Bytes and CRC-32 of a file."""
    nbytes = crc = 0
    with open(path, "rb") as file:
        while block := file.read(READ_BYTES):
            nbytes, crc = nbytes + len(block), crc32(block, crc)
    return nbytes, crc


def verified(path: Path, nbytes: int, crc: int) -> bytes:
    """The bytes of a file, which must have this length and CRC-32."""
    check_size(path, nbytes)
    data = path.read_bytes()
    check_crc(path, crc32(data), crc)
    return data


def verify(path: Path, nbytes: int, crc: int) -> None:
    """Check a file's length and CRC-32 without keeping its bytes."""
    check_size(path, nbytes)
    check_crc(path, checksum(path)[1], crc)


def check_size(path: Path, nbytes: int) -> None:
    """Refuse a missing or incomplete file before anything is read."""
    if not path.is_file():
        raise CorruptFile(f"{path} is missing")
    if path.stat().st_size != nbytes:
        raise CorruptFile(f"{path} is damaged: expected {nbytes} bytes, got {path.stat().st_size}")


def check_crc(path: Path, crc: object, expected: object) -> None:
    if crc != expected:
        raise CorruptFile(f"{path} is damaged: its checksum is not the one it was written with")


def read(data: bytes, path: Path) -> Sections:
    """The state in the bytes of a file; ``path`` is named in errors.

    Raises
    ------
    CorruptFile
        The bytes are no such state.
    """
    with hdf5.reading(path, "no state of a checkpoint"), h5py.File(io.BytesIO(data), "r") as file:
        hdf5.check_contents(file, _RULES)
        state: Sections = json.loads(file[VALUES][()].tobytes())
        total = 0
        for name, dataset in _datasets(file[ARRAYS], "") if ARRAYS in file else ():
            section, _, rest = name.partition("/")
            state[section][rest] = np.array(dataset[()])
            total += dataset.nbytes
            if total > len(data):
                raise CorruptFile("it names the same data several times")
        return state


def _datasets(group: h5py.Group, prefix: str) -> Iterator[tuple[str, h5py.Dataset]]:
    for name, member in group.items():
        if isinstance(member, h5py.Group):
            yield from _datasets(member, f"{prefix}{name}/")
        else:
            yield prefix + name, member
