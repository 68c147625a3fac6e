"""Results in HDF5: one dataset a column under /bench, everything about the run in attributes."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from .._util.hdf5_heaps import check_heaps
from .rows import FIELDS, Field

MOST_ROWS = 1 << 20  # of a result: sizes times implementations
MISSING = {str: "", dict: "", float: math.nan, int: -1, bool: -1}
TYPES = {str: h5py.string_dtype(), dict: h5py.string_dtype(), float: "f8", int: "i8", bool: "i1"}


def build() -> str:
    """How this h5py was built."""
    parallel = "MPI" if h5py.get_config().mpi else "serial"
    return f"h5py {h5py.__version__}, HDF5 {h5py.version.hdf5_version}, {parallel}"


def write(path: Path, document: dict[str, Any]) -> None:
    """Write ``document`` to ``path``, replacing what is there."""
    head = {name: value for name, value in document.items() if name != "rows"}
    with h5py.File(path, "w") as file:
        file.attrs["format"], file.attrs["version"] = head["format"], head["version"]
        file.attrs["head"] = json.dumps(head)
        table = file.create_group("bench")
        for name, field in FIELDS.items():
            column = [_stored(row.get(name), field) for row in document["rows"]]
            data = table.create_dataset(name, data=np.array(column, TYPES[field.kind]), dtype=TYPES[field.kind])
            data.attrs["units"], data.attrs["long_name"] = field.units, field.meaning or name
            data.attrs["missing"] = MISSING[field.kind]


def _stored(value: Any, field: Field) -> Any:
    if value is None:
        return MISSING[field.kind]
    return json.dumps(value) if field.kind is dict else value


def read(path: Path) -> dict[str, Any]:
    """The document that ``write`` wrote.

    Raises
    ------
    ValueError
        For columns that are not stored in the file itself, or too long for a result.
    CorruptFile
        For damaged texts with which HDF5 would not come to an end.
    """
    check_heaps(path)
    with h5py.File(path, "r") as file:
        _check(file)
        head = json.loads(file.attrs["head"])
        columns = {name: data.asstr()[()] if TYPES[FIELDS[name].kind] == h5py.string_dtype() else data[()]
                   for name, data in file["bench"].items() if name in FIELDS}  # fmt: skip
    names = list(columns)
    found = zip(*columns.values(), strict=True)
    return {**head, "rows": [{n: _loaded(v, n) for n, v in zip(names, row, strict=True)} for row in found]}


def _check(file: h5py.File) -> None:
    """Refuse what could read other files or take memory that is not in this one."""
    if not isinstance(file.get("bench", getlink=True), h5py.HardLink) or not isinstance(file["bench"], h5py.Group):
        raise ValueError("/bench is no group of this file")
    for name in file["bench"]:
        link = file["bench"].get(name, getlink=True)
        data = file["bench"][name] if isinstance(link, h5py.HardLink) else None
        if not isinstance(data, h5py.Dataset) or data.external or data.is_virtual or data.ndim != 1:
            raise ValueError(f"/bench/{name} is no column of this file")
        if data.size > MOST_ROWS:
            raise ValueError(f"/bench/{name} claims {data.size} rows, a result has at most {MOST_ROWS}")


def main() -> None:
    """``python -c ... FILE``: the document as JSON, for a parent that shall not share the fate of the reader."""
    try:
        json.dump(read(Path(sys.argv[1])), sys.stdout)
    except Exception as error:  # HDF5 raises many kinds; the parent wants one line
        sys.exit(f"{type(error).__name__}: {error}")


def _loaded(value: Any, name: str) -> Any:
    kind = FIELDS[name].kind
    if kind is float:
        return None if math.isnan(value) else float(value)
    if value == MISSING[kind] and name != "root":  # there -1 is a value: no root
        return None
    return json.loads(value) if kind is dict else kind(value)
