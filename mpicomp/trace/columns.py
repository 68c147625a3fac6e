"""Groups of equally long columns in an HDF5 file, each with its unit, its meaning and a named dimension."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

from . import schema
from .schema import Column

_CHUNK = 65_536  # rows; large enough to compress well, small enough to read a part


def write_table(
    parent: h5py.Group, name: str, columns: dict[str, Any], values: dict[str, Any], scale: str = "row",
    types: dict[str, Any] | None = None,
) -> h5py.Group:
    """A group of columns; its first dimension is the column ``scale``, or else one of row numbers made here."""
    group = parent.create_group(name)
    for column, meta in columns.items():
        write_column(group, column, meta, np.asarray(values[column]), (types or {}).get(column))
    if scale not in columns:
        write_column(group, scale, schema.ROW, np.arange(len(next(iter(values.values())))))
    attach_scale(group, scale)
    return group


def write_scale(group: h5py.Group, name: str, column: Column, values: np.ndarray) -> None:
    """A column that stands alone: it names its own dimension."""
    write_column(group, name, column, values)
    group[name].make_scale(name)


def write_column(group: h5py.Group, name: str, column: Column, values: np.ndarray, dtype: Any = None) -> None:
    values = values.astype(column.dtype)
    if values.dtype.kind == "S":  # as wide as the longest string, not as the format allows: tools print the padding
        dtype = f"S{max(1, max(map(len, values), default=1))}"
    dataset = create_column(group, name, column, len(values), dtype)
    if len(values):
        dataset[:] = values


def create_column(group: h5py.Group, name: str, column: Column, length: int, dtype: Any = None) -> h5py.Dataset:
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
    describe(dataset, units=column.units, long_name=column.long_name)
    return dataset


def describe(item: h5py.HLObject, **attributes: Any) -> None:
    """Set attributes, texts as strings of fixed length.

    HDF5 keeps those in the item's header, under its checksum. Strings of variable length lie in a heap without one,
    where a stretch of zeros has HDF5 2.0 search for ever.
    """
    for name, value in attributes.items():
        if isinstance(value, str):
            text = value.encode()
            item.attrs.create(name, text, dtype=h5py.string_dtype("utf-8", max(1, len(text))))
        else:
            item.attrs[name] = value


def describe_codes(dataset: h5py.Dataset, kind: str, codes: dict[str, int]) -> None:
    """What the codes (``values``) or bits (``masks``) of a column mean, as the CF conventions write it."""
    dataset.attrs[f"flag_{kind}"] = np.array(list(codes.values()), dataset.dtype)
    describe(dataset, flag_meanings=" ".join(codes))


def attach_scale(group: h5py.Group, scale: str) -> None:
    group[scale].make_scale(scale)
    for name, dataset in group.items():
        if name != scale:
            dataset.dims[0].attach_scale(group[scale])
