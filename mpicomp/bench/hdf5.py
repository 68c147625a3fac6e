"""Results in HDF5: one dataset a column under /bench, everything about the run in attributes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from .rows import FIELDS, Field

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
    """The document that ``write`` wrote."""
    with h5py.File(path, "r") as file:
        head = json.loads(file.attrs["head"])
        columns = {name: data.asstr()[()] if TYPES[FIELDS[name].kind] == h5py.string_dtype() else data[()]
                   for name, data in file["bench"].items() if name in FIELDS}  # fmt: skip
    names = list(columns)
    found = zip(*columns.values(), strict=True)
    return {**head, "rows": [{n: _loaded(v, n) for n, v in zip(names, row, strict=True)} for row in found]}


def _loaded(value: Any, name: str) -> Any:
    kind = FIELDS[name].kind
    if kind is float:
        return None if math.isnan(value) else float(value)
    if value == MISSING[kind] and name != "root":  # there -1 is a value: no root
        return None
    return json.loads(value) if kind is dict else kind(value)
