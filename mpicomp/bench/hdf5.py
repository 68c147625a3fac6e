"""Bench results in HDF5: one dataset per column under /bench, the description of the run as JSON in /head."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np

from .._util import hdf5
from .schema import FIELDS, Document, Field, full

MISSING = {str: "", dict: "", float: math.nan, int: -1, bool: -1}
TYPES = {float: "f8", int: "i8", bool: "i1"}  # others are texts
_RULES = hdf5.Rules(levels=2, kinds="iufS")


def build() -> str:
    """The versions of h5py and HDF5, and if they were built for MPI."""
    parallel = "MPI" if h5py.get_config().mpi else "serial"
    return f"h5py {h5py.__version__}, HDF5 {h5py.version.hdf5_version}, {parallel}"


def write(path: Path, document: Document) -> None:
    """Write ``document`` to the new file ``path``."""
    head = {name: value for name, value in document.items() if name != "rows"}
    with hdf5.creating(path) as file:
        hdf5.describe(file, {"format": head["format"], "version": head["version"]})
        file["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
        table = file.create_group("bench")
        for name, field in FIELDS.items():
            column = [_stored(cast("dict[str, object]", row).get(name), field) for row in document["rows"]]
            data = table.create_dataset(name, data=np.array(column, TYPES[field.kind]) if field.kind in TYPES
                                        else hdf5.fixed_texts(list(map(str, column))))
            hdf5.describe(data, {"units": field.units, "long_name": field.meaning or name,
                                 "missing": MISSING[field.kind]})  # fmt: skip


def _stored(value: object, field: Field) -> object:
    if value is None:
        return MISSING[field.kind]
    return json.dumps(value) if field.kind is dict else value


def read(path: Path) -> Document:
    """The document that ``write`` wrote.

    Raises
    ------
    CorruptFile
        For contents that HDF5 cannot be trusted with: see `.._util.hdf5`.
    """
    with h5py.File(path, "r") as file:
        hdf5.check_contents(file, _RULES)
        head: Document = json.loads(file["head"][()].tobytes())
        columns = {name: data[()] if FIELDS[name].kind in TYPES else data.asstr()[()]
                   for name, data in file["bench"].items() if name in FIELDS}  # fmt: skip
    names = list(columns)
    found = zip(*columns.values(), strict=True)
    return {**head, "rows": [full({n: _loaded(v, n) for n, v in zip(names, row, strict=True)}) for row in found]}


def main() -> None:
    """Print the document in the file of the first argument as JSON, for a parent that must survive a crash of HDF5."""
    try:
        json.dump(read(Path(sys.argv[1])), sys.stdout)
    except Exception as error:  # HDF5 raises many kinds; the parent expects one line
        sys.exit(f"{type(error).__name__}: {error}")


def _loaded(value: Any, name: str) -> object:
    kind = FIELDS[name].kind
    if kind is float:
        return None if math.isnan(value) else float(value)
    if value == MISSING[kind] and name != "root":  # of root, -1 is a value: no root
        return None
    return json.loads(value) if kind is dict else kind(value)
