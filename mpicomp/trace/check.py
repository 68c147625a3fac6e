"""Check of a file against the format. Every column is read, so checksums are verified too."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from . import schema
from .files import Source
from .read import Trace, open_trace, plain, reading

_ATTRIBUTES = ("Conventions", "title", "creator", "created", "n_ranks", "n_nodes", "command_line", "complete")


def validate(path: Source) -> list[str]:
    """List the departures of a file from the format; raise ``CorruptFile`` if it cannot be read at all."""
    with open_trace(path) as trace:
        several = len(trace.files) > 1
        return [f"{part.path.name}: {fault}" if several else fault for part in trace.parts() for fault in _faults(part)]


def _faults(trace: Trace) -> Iterator[str]:
    with reading(trace.path):
        yield from (f"attribute {name} is missing" for name in _ATTRIBUTES if name not in trace.attributes)
        columns = list(_columns(trace))
        yield from columns
        if not columns:
            yield from _values(trace)


def _columns(trace: Trace) -> Iterator[str]:
    metrics = {f"metrics/{link}": {"row": schema.ROW, **schema.METRICS} for link in trace.file.get("metrics", ())}
    for table, columns in {**schema.TABLES, **metrics}.items():
        for name, column in columns.items():
            dataset = trace.file.get(f"{table}/{name}")
            if dataset is None:
                yield f"/{table}/{name} is missing"
            elif not _is_of_type(dataset.dtype, np.dtype(column.dtype)):
                yield f"/{table}/{name} is {dataset.dtype}, expected {np.dtype(column.dtype)}"
            elif (units := plain(dataset.attrs.get("units", ""))) != column.units:
                yield f"/{table}/{name}: units are {units!r}, expected {column.units!r}"
            elif not dataset.is_scale and "DIMENSION_LIST" not in dataset.attrs:
                yield f"/{table}/{name} has no dimension scale"
    for name in (*(f"vocab/{field}" for field in schema.LABEL_FIELDS), "rank_offset"):
        if name not in trace.file:
            yield f"/{name} is missing"


def _values(trace: Trace) -> Iterator[str]:
    events, offsets = trace.events(), trace.file["rank_offset"][:].astype(np.int64)
    if trace.attributes.get("n_ranks") != trace.n_ranks:
        yield f"n_ranks is {trace.attributes.get('n_ranks')}, but /ranks has {trace.n_ranks} rows"
    if not np.array_equal(np.diff(offsets), _events_here(trace)):
        yield "/rank_offset does not match /ranks/n_events"
    elif int(offsets[-1]) != len(events["rank"]):
        yield f"/events has {len(events['rank'])} rows, /rank_offset says {int(offsets[-1])}"
    elif not np.array_equal(events["rank"], np.repeat(np.arange(trace.n_ranks), np.diff(offsets))):
        yield "/events is not sorted by rank"
    if np.any(events["t_end"] < events["t_start"]):
        yield f"{int(np.sum(events['t_end'] < events['t_start']))} events end before they begin"
    within_rank = events["rank"][1:] == events["rank"][:-1]
    if np.any(np.diff(events["t_start"])[within_rank] < 0):
        yield "/events of a rank are not sorted by t_start"
    for table in ("clock", "steps", "summary", "ranks"):  # reading them verifies their checksums
        trace.table(table)
    trace.metrics()


def _events_here(trace: Trace) -> np.ndarray:
    """Number of events of each rank in this file: a part of a trace has those of some ranks only."""
    counts = trace.table("ranks")["n_events"].astype(np.int64)
    first, last = (trace.attributes.get(name, default) for name, default in
                   (("first_rank", 0), ("last_rank", trace.n_ranks - 1)))  # fmt: skip
    ranks = np.arange(trace.n_ranks)
    return np.where((ranks >= first) & (ranks <= last), counts, 0)


def _is_of_type(got: np.dtype, expected: np.dtype) -> bool:
    """Compare dtypes; strings may be narrower than the format's."""
    return got.kind == "S" and got.itemsize <= expected.itemsize if expected.kind == "S" else got == expected
