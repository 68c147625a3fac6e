"""Writer of the HDF5 file: columns that h5dump, h5py, pandas and xarray read without this package."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from .._util.hdf5 import creating, describe
from .._util.progress import Progress, silent
from ..errors import CorruptFile
from . import schema, tables
from .columns import attach_scale, create_column, describe_codes, write_scale, write_table
from .journal import Journal
from .schema import Column
from .tables import Result, Table
from .totals import Totals

_LONGEST_ENUM = 32_768  # bytes of names; HDF5 keeps a type in an object header of at most 64 KiB
_LARGEST = (1 << 64) - 1  # number in a column of bytes; a larger sum is written as this
_NONE = "none"  # name of "not given" in the file: an enum has no empty name
_SUMMARY_KEY = ("kind", "algo", "scheme", "size_bin")
_TRAFFIC = ("nbytes_sent", "nbytes_recv")
_SUMMARISED = ("kind", "algo", "scheme", "t_start", "t_end", "nbytes_dense", *_TRAFFIC)

Ranks = list[Journal | None]


class Run:
    """A run to be written: its metadata, journals, and the ranks whose events each file gets."""

    def __init__(self, metadata: Result, journals: Ranks, status: list[str], parts: list[range],
                 progress: Progress = silent) -> None:  # fmt: skip
        self.metadata, self.journals, self.status, self.parts = metadata, journals, status, parts
        self.progress = progress
        self.vocabulary = _Vocabulary(journals)  # of all ranks, so that codes mean the same in every part

    def write(self, path: Path) -> None:
        """Create ``path``, which must not exist: a file, or a folder if there are several parts."""
        if len(self.parts) == 1:
            self._write_part(path, 0)
            return
        path.mkdir()
        for part in range(len(self.parts)):
            self._write_part(path / f"part{part:05d}.h5", part)

    def _write_part(self, path: Path, part: int) -> None:
        """Create one file; ``complete`` is the last thing written."""
        # Files of libver "latest" cannot be read by the HDF5 1.10 tools that clusters still have.
        with creating(path, libver=("v110", "v110")) as file:
            _write_attributes(file, self.metadata, self.journals)
            ranks = self.parts[part]
            describe(file, {"part": part, "n_parts": len(self.parts), "first_rank": ranks.start,
                            "last_rank": ranks.stop - 1})  # fmt: skip
            _write_ranks(file, self.journals, self.status)
            _write_clock(file, self.journals)
            self.vocabulary.write(file.create_group("vocab"))
            here = [own if rank in ranks else None for rank, own in enumerate(self.journals)]
            before = sum(own.n_events for own in self.journals[: ranks.start] if own)
            _write_events(file, here, self.vocabulary, before, self.progress)
            write_table(file, "open", schema.OPEN, _open_events(here))
            _write_metrics(file.create_group("metrics"), here)
            file.attrs["complete"] = all(state == "closed" for state in self.status)


class _Vocabulary:
    """A list of names for each field of a label, and the codes of each journal's labels in these lists."""

    def __init__(self, journals: Ranks) -> None:
        self.names: list[dict[str, int]] = [{_NONE: 0} for _ in schema.LABEL_FIELDS]
        self._codes = {own.rank: self._encode(own) for own in journals if own}

    def codes(self, rank: int) -> np.ndarray:
        """Array (labels, fields) of codes."""
        return self._codes[rank]

    def code(self, field: str, name: str) -> int:
        return self.names[schema.LABEL_FIELDS.index(field)].get(name, -1)

    def enum(self, field: str) -> np.dtype:
        names = self.names[schema.LABEL_FIELDS.index(field)]
        if sum(len(name) + 8 for name in names) > _LONGEST_ENUM:
            return np.dtype("<u2")  # /vocab has the names
        return h5py.enum_dtype(names, basetype="<u2")

    def write(self, group: h5py.Group) -> None:
        for field, names in zip(schema.LABEL_FIELDS, self.names, strict=True):
            column = Column("S64", "1", f"names of the codes in /events/{field}")
            write_scale(group, field, column, np.array(list(names), "S"))

    def _encode(self, own: Journal) -> np.ndarray:
        codes = np.zeros((max(own.labels, default=-1) + 1, len(schema.LABEL_FIELDS)), np.uint16)
        for label, strings in own.labels.items():
            for field, name in enumerate(strings):
                names = self.names[field]
                codes[label, field] = names.setdefault(name or _NONE, len(names))
        return codes


def _write_attributes(file: h5py.File, run: Result, journals: Ranks) -> None:
    plain = {name: json.dumps(value) if isinstance(value, (dict, list)) else value for name, value in run.items()}
    describe(file, {
        "Conventions": schema.CONVENTIONS,
        **plain,
        "n_nodes": len({own.head["rank"]["hostname"] for own in journals if own}),
        "time_reference": "CLOCK_MONOTONIC of each rank; /clock leads to that of rank 0",
        "h5py_version": h5py.__version__,
        "hdf5_version": h5py.version.hdf5_version,
    })  # fmt: skip


def _write_ranks(file: h5py.File, journals: Ranks, status: list[str]) -> None:
    known = [own.head["rank"] if own else None for own in journals]
    hosts = [rank["hostname"] if rank else "" for rank in known]
    nodes = {host: number for number, host in enumerate(dict.fromkeys(filter(None, hosts)))}
    node = np.array([nodes.get(host, -1) for host in hosts])
    columns: dict[str, npt.ArrayLike] = {
        "rank": np.arange(len(journals)),
        "node": node,
        "local_rank": tables.ordinal(node),
        "hostname": np.array(hosts, "S"),
        "pid": [rank.get("pid", -1) if rank else -1 for rank in known],
        "cpus": np.array([rank["cpus"] if rank else "" for rank in known], "S"),
        "n_events": [own.n_events if own else 0 for own in journals],
        "n_dropped": [own.n_dropped if own else 0 for own in journals],
        "status": [schema.STATUS[state] for state in status],
    }
    types = {"status": h5py.enum_dtype(schema.STATUS, basetype="u1")}
    group = write_table(file, "ranks", schema.RANKS, columns, scale="rank", types=types)
    describe_codes(group["status"], "values", schema.STATUS)


def _write_clock(file: h5py.File, journals: Ranks) -> None:
    reference = journals[0].head["rank"]["clock"] if journals[0] else ""
    rows = [(own.rank, reading["t_local"], reading["offset"], reading["rtt"],
             bool(reference) and own.head["rank"]["clock"] == reference)
            for own in journals if own for reading in own.clock]  # fmt: skip
    group = write_table(file, "clock", schema.CLOCK, _columns(schema.CLOCK, rows))
    describe(group, {"reference_rank": 0, "method": "ping-pong with rank 0, shortest of 16 round trips"})


def _write_events(file: h5py.File, journals: Ranks, vocabulary: _Vocabulary, before: int, progress: Progress) -> None:
    """Write /events rank by rank, so that one rank's events are in memory at a time, and the tables derived from them.

    Earlier parts of the trace hold ``before`` events.
    """
    offsets = np.cumsum([0] + [own.n_events if own else 0 for own in journals])
    group = file.create_group("events")
    enums = {field: vocabulary.enum(field) for field in schema.LABEL_FIELDS}
    datasets = {  # kept open: closing one compresses its unfinished chunk, once more for each rank
        name: create_column(group, name, column, int(offsets[-1]), enums.get(name))
        for name, column in schema.EVENTS.items()
    }
    describe_codes(group["flags"], "masks", schema.FLAGS)
    steps, totals = [], Totals()
    for rank, own in enumerate(journals):
        if own is None:
            continue
        progress(f"writing rank {rank} of {len(journals)}", rank / len(journals))
        columns = _event_columns(own, vocabulary, before + int(offsets[rank]))
        for name, values in columns.items():
            datasets[name][offsets[rank] : offsets[rank + 1]] = values
        steps.append(_steps_of(columns, vocabulary.code("kind", "step")))
        totals.add(_SUMMARY_KEY, {name: columns[name] for name in _SUMMARISED})
    attach_scale(group, "event")
    write_scale(file, "rank_offset", schema.RANK_OFFSET, offsets)
    write_table(file, "steps", schema.STEPS, _concatenated(steps, schema.STEPS))
    write_table(file, "summary", schema.SUMMARY, _summary(totals, vocabulary))


def _open_events(journals: Ranks) -> Mapping[str, npt.ArrayLike]:
    """The event that each rank was last in, unless the rank recorded something later or closed.

    What an error or a signal has ended, the rank was in: it says nothing of what came later.
    """
    def ended(own: Journal) -> np.ndarray:
        events = own.events()
        return events["t_end"][events["flags"] & schema.ERROR == 0]

    seen = [(own.rank, own.open) for own in journals if own and own.open and own.status != "closed"
            and own.open["t"] > ended(own).max(initial=own.open["t_start"])]  # fmt: skip
    return _columns(schema.OPEN, [(rank, one["kind"], one["step"], one["t_start"], one["t"]) for rank, one in seen])


def _event_columns(own: Journal, vocabulary: _Vocabulary, first: int) -> Table:
    records = own.events()
    known = vocabulary.codes(own.rank)
    if len(records) and records["label"].max() >= len(known):
        raise CorruptFile(f"{own.path}: events with labels that the journal does not name")
    codes = known[records["label"]]
    columns = {name: records[name] for name in records.dtype.names or () if name != "label"}
    columns |= {field: codes[:, index] for index, field in enumerate(schema.LABEL_FIELDS)}
    columns["event"] = np.arange(first, first + len(records))
    columns["rank"] = np.full(len(records), own.rank)
    columns["seq"] = tables.ordinal(columns["kind"])
    return columns


def _steps_of(events: Table, step_kind: int) -> Table:
    """Begin and end of each step; if an app and the reducer both mark it, the outer one."""
    marked = (events["kind"] == step_kind) & (events["step"] >= 0)
    events = {name: events[name][marked] for name in schema.STEPS}
    order, starts = tables.blocks(events["step"])
    if not len(order):
        return events
    return {
        "step": events["step"][order][starts],
        "rank": events["rank"][order][starts],
        "t_start": np.minimum.reduceat(events["t_start"][order], starts),
        "t_end": np.maximum.reduceat(events["t_end"][order], starts),
    }


def _summary(totals: Totals, vocabulary: _Vocabulary) -> Table:
    rows = []
    names = [np.array(list(vocabulary.names[field]), "S") for field in range(3)]
    for (kind, algo, scheme, size), durations, nbytes in totals.rows():
        median, p90, p99 = np.percentile(durations, [50, 90, 99])
        rows.append((
            names[0][kind], names[1][algo], names[2][scheme], size, len(durations), median, p90, p99,
            durations.max(), durations.sum(), *(np.uint64(min(nbytes[name], _LARGEST)) for name in _TRAFFIC),
        ))  # fmt: skip
    return _columns(schema.SUMMARY, rows)


def _write_metrics(group: h5py.Group, journals: Ranks) -> None:
    rows: dict[str, list[Table]] = {}
    for own in filter(None, journals):
        records = own.metrics()
        for (code,), chosen in tables.groups(records["name"]):
            part = {name: records[name][chosen] for name in ("step", "t", "value")}
            part["rank"] = np.full(len(chosen), own.rank)
            if code not in own.names:
                raise CorruptFile(f"{own.path}: values of metrics that the journal does not name")
            rows.setdefault(own.names[code], []).append(part)
    for name, parts in rows.items():
        table = write_table(group, _link_name(name, group), schema.METRICS, _concatenated(parts, schema.METRICS))
        describe(table, {"name": name})


def _link_name(name: str, group: h5py.Group) -> str:
    """A name for a group, distinct from those in use: without slash and leading dot, which HDF5 reads as a path."""
    link = "".join(letter if letter.isalnum() or letter in "_-." else "_" for letter in name).lstrip(".") or "_"
    while link in group:
        link += "_"
    return link


def _columns(names: Collection[str], rows: Sequence[tuple[object, ...]]) -> Table:
    """The columns of rows that have a value for each name; empty columns without rows."""
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return {name: np.array(column) for name, column in zip(names, columns, strict=True)}


def _concatenated(parts: list[Table], columns: Iterable[str]) -> Table:
    return {name: np.concatenate([part[name] for part in parts] or [np.empty(0)]) for name in columns}
