"""Tables in an HDF5 file: groups of equally long columns with unit, meaning and a named dimension."""

from __future__ import annotations

from collections.abc import Mapping

import h5py
import numpy as np
import numpy.typing as npt

from .._util.hdf5 import describe
from . import schema
from .schema import Column

_CHUNK = 65_536  # rows; large enough to compress well, small enough to read a part


def write_table(
    parent: h5py.Group, name: str, columns: Mapping[str, Column], values: Mapping[str, npt.ArrayLike],
    scale: str = "row", types: Mapping[str, np.dtype] | None = None,
) -> h5py.Group:
    """Write a group of columns; their dimension is the column ``scale``, by default row numbers."""
    group = parent.create_group(name)
    for column, meta in columns.items():
        write_column(group, column, meta, np.asarray(values[column]), (types or {}).get(column))
    if scale not in columns:
        write_column(group, scale, schema.ROW, np.arange(len(group[next(iter(columns))])))
    attach_scale(group, scale)
    return group


def write_scale(group: h5py.Group, name: str, column: Column, values: np.ndarray) -> None:
    """Write a column outside of a table: it names its own dimension."""
    write_column(group, name, column, values)
    group[name].make_scale(name)


def write_column(group: h5py.Group, name: str, column: Column, values: np.ndarray,
                 dtype: npt.DTypeLike | None = None) -> None:
    values = values.astype(column.dtype)
    if values.dtype.kind == "S":  # as wide as the longest string: tools print the padding
        dtype = f"S{max(1, max(map(len, values), default=1))}"
    dataset = create_column(group, name, column, len(values), dtype)
    if len(values):
        dataset[:] = values


def create_column(group: h5py.Group, name: str, column: Column, length: int,
                  dtype: npt.DTypeLike | None = None) -> h5py.Dataset:
    dataset = group.create_dataset(
        name,
        shape=(length,),
        maxshape=(None,),
        dtype=dtype if dtype is not None else np.dtype(column.dtype).newbyteorder("<"),
        chunks=(max(1, min(length, _CHUNK)),),
        shuffle=True,
        compression="gzip",
        compression_opts=1,
        fletcher32=True,
    )
    describe(dataset, {"units": column.units, "long_name": column.long_name})
    return dataset


def describe_codes(dataset: h5py.Dataset, kind: str, codes: dict[str, int]) -> None:
    """Document the codes (``values``) or bits (``masks``) of a column as the CF conventions do."""
    dataset.attrs[f"flag_{kind}"] = np.array(list(codes.values()), dataset.dtype)
    describe(dataset, {"flag_meanings": " ".join(codes)})


def attach_scale(group: h5py.Group, scale: str) -> None:
    group[scale].make_scale(scale)
    for name, dataset in group.items():
        if name != scale:
            dataset.dims[0].attach_scale(group[scale])
