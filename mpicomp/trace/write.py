"""Writing the HDF5 file: groups of equally long columns, readable by h5dump, h5py and pandas without this code."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np

from ..errors import CorruptFile
from . import schema, tables
from .journal import Journal
from .schema import Column

_CHUNK = 65_536  # rows; large enough to compress well, small enough to read a part
_LONGEST_ENUM = 32_768  # bytes of names; HDF5 keeps a type in an object header of at most 64 KiB
_NONE = "none"  # how "not given" is spelt in the file: an enum has no empty name

Ranks = list[Journal | None]


def write_trace(path: Path, run: dict, journals: Ranks, status: list[str]) -> None:
    """Create ``path`` (it must not exist) and fill it; ``complete`` is the last thing written."""
    # Files of libver "latest" cannot be read by the HDF5 1.10 tools that clusters still have.
    with h5py.File(path, "x", libver=("v110", "v110")) as file:
        vocabulary = _Vocabulary(journals)
        _write_attributes(file, run, journals)
        _write_ranks(file, journals, status)
        _write_clock(file, journals)
        vocabulary.write(file.create_group("vocab"))
        _write_events(file, journals, vocabulary)
        _write_table(file, "open", schema.OPEN, _unfinished(journals))
        _write_metrics(file.create_group("metrics"), journals)
        file.attrs["complete"] = all(state == "closed" for state in status)


class _Vocabulary:
    """One list of names for each field of a label, and from each journal's labels to codes in these lists."""

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
            return np.dtype("<u2")  # /vocab still tells the names
        return h5py.enum_dtype(names, basetype="<u2")

    def write(self, group: h5py.Group) -> None:
        for field, names in zip(schema.LABEL_FIELDS, self.names, strict=True):
            column = Column("S64", "1", f"names of the codes in /events/{field}")
            _write_column(group, field, column, np.array(list(names), "S"))

    def _encode(self, own: Journal) -> np.ndarray:
        codes = np.zeros((max(own.labels, default=-1) + 1, len(schema.LABEL_FIELDS)), np.uint16)
        for label, strings in own.labels.items():
            for field, name in enumerate(strings):
                names = self.names[field]
                codes[label, field] = names.setdefault(name or _NONE, len(names))
        return codes


def _write_attributes(file: h5py.File, run: dict, journals: Ranks) -> None:
    file.attrs["Conventions"] = schema.CONVENTIONS
    for name, value in run.items():
        file.attrs[name] = json.dumps(value) if isinstance(value, (dict, list)) else value
    file.attrs["n_nodes"] = len({own.head["rank"]["hostname"] for own in journals if own})
    file.attrs["time_reference"] = "CLOCK_MONOTONIC of each rank; /clock leads to that of rank 0"


def _write_ranks(file: h5py.File, journals: Ranks, status: list[str]) -> None:
    known = [own.head["rank"] if own else {} for own in journals]
    hosts = [facts.get("hostname", "") for facts in known]
    nodes = {host: number for number, host in enumerate(dict.fromkeys(filter(None, hosts)))}
    node = np.array([nodes.get(host, -1) for host in hosts])
    columns = {
        "rank": np.arange(len(journals)),
        "node": node,
        "local_rank": tables.ordinal(node),
        "hostname": np.array(hosts, "S"),
        "pid": [facts.get("pid", -1) for facts in known],
        "cpus": np.array([facts.get("cpus", "") for facts in known], "S"),
        "n_events": [own.n_events if own else 0 for own in journals],
        "n_dropped": [own.n_dropped if own else 0 for own in journals],
        "status": [schema.STATUS[state] for state in status],
    }
    types = {"status": h5py.enum_dtype(schema.STATUS, basetype="u1")}
    _write_table(file, "ranks", schema.RANKS, columns, scale="rank", types=types)


def _write_clock(file: h5py.File, journals: Ranks) -> None:
    reference = journals[0].head["rank"]["clock"] if journals[0] else ""
    rows = [(own.rank, reading, own.head["rank"]["clock"]) for own in journals if own for reading in own.clock]
    columns = {
        "rank": [rank for rank, _, _ in rows],
        **{name: [reading[name] for _, reading, _ in rows] for name in ("t_local", "offset", "rtt")},
        "shared": [bool(reference) and identity == reference for _, _, identity in rows],
    }
    group = _write_table(file, "clock", schema.CLOCK, columns)
    group.attrs["reference_rank"] = 0
    group.attrs["method"] = "ping-pong with rank 0, shortest of 16 round trips"


def _write_events(file: h5py.File, journals: Ranks, vocabulary: _Vocabulary) -> None:
    """Fill /events rank by rank, so that one rank's events are in memory at a time; then what follows from them."""
    offsets = np.cumsum([0] + [own.n_events if own else 0 for own in journals])
    group = file.create_group("events")
    enums = {field: vocabulary.enum(field) for field in schema.LABEL_FIELDS}
    for name, column in schema.EVENTS.items():
        _create_column(group, name, column, int(offsets[-1]), enums.get(name))
    steps, durations = [], []
    for rank, own in enumerate(journals):
        if own is None:
            continue
        columns = _event_columns(own, vocabulary, int(offsets[rank]))
        for name, values in columns.items():
            group[name][offsets[rank] : offsets[rank + 1]] = values
        steps.append(_steps_of(columns, vocabulary.code("kind", "step")))
        durations.append({name: columns[name] for name in _SUMMARISED})
    _attach_scale(group, "event")
    _write_column(file, "rank_offset", schema.RANK_OFFSET, offsets)
    _write_table(file, "steps", schema.STEPS, _concatenated(steps, schema.STEPS))
    _write_table(file, "summary", schema.SUMMARY, _summary(_concatenated(durations, _SUMMARISED), vocabulary))


def _unfinished(journals: Ranks) -> dict[str, list]:
    """What each rank was last seen in, unless it recorded something later or closed."""
    found = [own for own in journals if own and own.open and not own.done and _is_current(own)]
    return {"rank": [own.rank for own in found]} | {
        name: [own.open[name].encode() if name == "kind" else own.open[name] for own in found]
        for name in ("kind", "step", "t_start", "t")
    }


def _is_current(own: Journal) -> bool:
    return own.open["t"] > own.events()["t_end"].max(initial=own.open["t_start"])


def _event_columns(own: Journal, vocabulary: _Vocabulary, first: int) -> dict[str, np.ndarray]:
    records = own.events()
    known = vocabulary.codes(own.rank)
    if len(records) and records["label"].max() >= len(known):
        raise CorruptFile(f"{own.path}: events with labels that the journal does not name")
    codes = known[records["label"]]
    columns = {name: records[name] for name in records.dtype.names if name != "label"}
    columns |= {field: codes[:, index] for index, field in enumerate(schema.LABEL_FIELDS)}
    columns["event"] = np.arange(first, first + len(records))
    columns["rank"] = np.full(len(records), own.rank)
    columns["seq"] = tables.ordinal(columns["kind"])
    return columns


def _steps_of(events: dict[str, np.ndarray], step_kind: int) -> dict[str, np.ndarray]:
    """Begin and end of each step; where an app and the reducer both mark it, the outer one."""
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


_SUMMARISED = ("kind", "algo", "scheme", "t_start", "t_end", "nbytes_dense", "nbytes_sent", "nbytes_recv")


def _summary(events: dict[str, np.ndarray], vocabulary: _Vocabulary) -> dict[str, list]:
    duration = events["t_end"].astype(np.int64) - events["t_start"].astype(np.int64)
    bins = tables.size_bin(events["nbytes_dense"])
    summary: dict[str, list] = {name: [] for name in schema.SUMMARY}
    names = [np.array(list(vocabulary.names[field]), "S") for field in range(3)]
    for (kind, algo, scheme, size), rows in tables.groups(events["kind"], events["algo"], events["scheme"], bins):
        median, p90, p99 = np.percentile(duration[rows], [50, 90, 99])
        values = (
            names[0][kind], names[1][algo], names[2][scheme], size, len(rows), median, p90, p99,
            duration[rows].max(), duration[rows].sum(), events["nbytes_sent"][rows].sum(),
            events["nbytes_recv"][rows].sum(),
        )  # fmt: skip
        for column, value in zip(summary.values(), values, strict=True):
            column.append(value)
    return summary


def _write_metrics(group: h5py.Group, journals: Ranks) -> None:
    rows: dict[str, list[dict[str, np.ndarray]]] = {}
    for own in filter(None, journals):
        records = own.metrics()
        for (code,), chosen in tables.groups(records["name"]):
            part = {name: records[name][chosen] for name in ("step", "t", "value")}
            part["rank"] = np.full(len(chosen), own.rank)
            rows.setdefault(own.names[code], []).append(part)
    for name, parts in rows.items():
        table = _write_table(group, _link_name(name, group), schema.METRICS, _concatenated(parts, schema.METRICS))
        table.attrs["name"] = name


def _link_name(name: str, group: h5py.Group) -> str:
    """A name for a group: no slash and no leading dot, which HDF5 reads as a path; distinct from those there."""
    link = "".join(letter if letter.isalnum() or letter in "_-." else "_" for letter in name).lstrip(".") or "_"
    while link in group:
        link += "_"
    return link


def _write_table(parent: h5py.Group, name: str, columns: dict, values: dict, scale: str = "", types=None) -> h5py.Group:
    group = parent.create_group(name)
    for column, meta in columns.items():
        _write_column(group, column, meta, np.asarray(values[column]), (types or {}).get(column))
    if scale:
        _attach_scale(group, scale)
    return group


def _write_column(group: h5py.Group, name: str, column: Column, values: np.ndarray, dtype=None) -> None:
    values = values.astype(column.dtype)
    if values.dtype.kind == "S":  # as wide as the longest string, not as the format allows: tools print the padding
        dtype = f"S{max(1, max(map(len, values), default=1))}"
    dataset = _create_column(group, name, column, len(values), dtype)
    if len(values):
        dataset[:] = values


def _create_column(group: h5py.Group, name: str, column: Column, length: int, dtype=None) -> h5py.Dataset:
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
    dataset.attrs["units"] = column.units
    dataset.attrs["long_name"] = column.long_name
    return dataset


def _attach_scale(group: h5py.Group, scale: str) -> None:
    group[scale].make_scale(scale)
    for name, dataset in group.items():
        if name != scale:
            dataset.dims[0].attach_scale(group[scale])


def _concatenated(parts: list[dict], columns) -> dict[str, np.ndarray]:
    return {name: np.concatenate([np.asarray(part[name]) for part in parts] or [np.empty(0)]) for name in columns}
