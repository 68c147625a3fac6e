"""Export to the formats of other tools, rank by rank, so that one rank's events are in memory at a time."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TextIO

import numpy as np

from .._util.atomic_files import check_output, write_output
from .._util.progress import Progress, silent
from ..errors import InvalidArgument, MissingExtra
from . import schema, tables
from .files import Source, files_of
from .read import Trace, open_trace
from .tables import Result, Table

COLUMNS = (*(name for name in schema.EVENTS if name != "event"), "t_reference")
_COUNTERS = ("nbytes_sent", "nbytes_recv")
_NS_PER_US = 1000


def export(path: Source, output: Source, format: str, *, ranks: Sequence[int] | None = None,
           steps: tuple[int, int] | None = None, force: bool = False, progress: Progress = silent) -> int:
    """Write the events of a trace to ``output``, and return their number.

    Parameters
    ----------
    format : str
        ``chrome`` (JSON for chrome://tracing), ``perfetto`` (the same, gzipped, for ui.perfetto.dev), ``csv``,
        ``jsonl`` or ``parquet``. Text is also gzipped if ``output`` ends in ``.gz``.
    ranks : sequence of int, optional
        Only events of these ranks.
    steps : (int, int), optional
        Only events of steps from the first to the last of these two, both included.
    force : bool
        Replace ``output`` if it exists.
    progress : callable
        Gets the current action and the share done, from 0 to 1.
    """
    if format not in FORMATS:
        raise InvalidArgument(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    output, written = Path(output).absolute(), [0]
    check_output(output, force, files_of(path))  # before the work
    zipped = format == "perfetto" or output.suffix == ".gz"
    with open_trace(path) as trace:
        if ranks is not None and not all(0 <= rank < trace.n_ranks for rank in ranks):
            raise InvalidArgument(f"ranks must be in 0..{trace.n_ranks - 1}, got {list(ranks)}")

        def counted() -> Iterator[Table]:
            for batch in _batches(trace, ranks, steps):
                progress(f"rank {batch['rank'][0]} of {trace.n_ranks}", batch["rank"][0] / trace.n_ranks)
                written[0] += len(batch["rank"])
                yield batch

        def fill(part: Path) -> None:
            if format == "parquet":
                _write_parquet(part, trace, counted())
                return
            with part.open("xb") as raw, gzip.open(raw, "wt", 6) if zipped else io.TextIOWrapper(
                    raw, encoding="utf-8", newline="") as file:
                FORMATS[format](file, trace, counted())

        write_output(output, force, fill)
    return written[0]


def _batches(trace: Trace, ranks: Sequence[int] | None, steps: tuple[int, int] | None) -> Iterator[Table]:
    """The chosen events, one rank after the other, with names for codes and times on the reference clock."""
    names = {field: np.array(trace.vocabulary(field), object) for field in schema.LABEL_FIELDS}
    for part in trace.parts():
        events = part.events(*(name for name in COLUMNS if name != "t_reference"))
        chosen = np.ones(len(events["rank"]), bool)
        if ranks is not None:
            chosen &= np.isin(events["rank"], list(ranks))
        if steps is not None:
            chosen &= (events["step"] >= steps[0]) & (events["step"] <= steps[1])
        rows = np.flatnonzero(chosen)
        starts = np.flatnonzero(np.diff(events["rank"][rows], prepend=-1))
        for own in np.split(rows, starts[1:]) if len(rows) else []:
            batch = {name: column[own] for name, column in events.items()}
            batch["t_reference"] = part.corrected(batch["rank"], batch["t_start"])
            yield batch | {field: names[field][batch[field]] for field in names}


def _rows(batch: Table) -> Iterable[tuple[object, ...]]:
    return zip(*(batch[name].tolist() for name in COLUMNS), strict=True)


def _write_csv(file: TextIO, trace: Trace, batches: Iterator[Table]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for batch in batches:
        writer.writerows(_rows(batch))


def _write_jsonl(file: TextIO, trace: Trace, batches: Iterator[Table]) -> None:
    for batch in batches:
        file.writelines(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in _rows(batch))


def _write_chrome(file: TextIO, trace: Trace, batches: Iterator[Table]) -> None:
    """Write a process for each rank, a slice for each event, and counters of the bytes sent and received so far.

    Times are microseconds after the trace's first event, on the reference clock.
    """
    facts = {name: trace.attributes.get(name) for name in ("title", "creator", "created", "run_id", "git_revision")}
    facts["clock_uncertainty_ns"] = trace.clock_uncertainty()
    file.write(f'{{"displayTimeUnit": "ns", "otherData": {json.dumps(facts)}, "traceEvents": [\n')
    starts = [part.corrected(own["rank"], own["t_start"])
              for part in trace.parts() for own in [part.events("rank", "t_start")]]
    first = min((int(times.min()) for times in starts if len(times)), default=0)
    hosts, comma = trace.hostnames(), ""
    for batch in batches:
        for entry in _chrome_events(batch, hosts, first):
            file.write(comma + json.dumps(entry, separators=(",", ":")))
            comma = ",\n"
    file.write("\n]}\n")


def _chrome_events(batch: Table, hosts: list[str], first: int) -> Iterator[Result]:
    rank = int(batch["rank"][0])
    own = {"pid": rank, "tid": 0}
    yield {"ph": "M", "name": "process_name", **own, "args": {"name": f"rank {rank} on {hosts[rank]}"}}
    yield {"ph": "M", "name": "process_sort_index", **own, "args": {"sort_index": rank}}
    so_far, counts = dict.fromkeys(_COUNTERS, 0), _counted(batch)
    for row, counted in zip(_rows(batch), counts, strict=True):
        event: Result = dict(zip(COLUMNS, row, strict=True))
        begin, lasted = event["t_reference"] - first, event["t_end"] - event["t_start"]
        details = {name: event[name] for name in COLUMNS if event[name] not in (0, "none") and name not in _SHOWN}
        yield {"ph": "X", "name": event["kind"], "cat": event["algo"], "ts": begin / _NS_PER_US,
               "dur": max(0, lasted) / _NS_PER_US, **own, "args": {"step": event["step"], **details}}  # fmt: skip
        if counted:
            so_far = {name: so_far[name] + event[name] for name in _COUNTERS}
            yield {"ph": "C", "name": "bytes", **own, "ts": (begin + lasted) / _NS_PER_US, "args": so_far}


def _counted(batch: Table) -> list[bool]:
    """Which events of a rank have bytes that no other step or collective around them has."""
    carries = np.any([batch[name] > 0 for name in _COUNTERS], axis=0)
    carries &= np.isin(batch["kind"].astype(str), ("step", *schema.COLLECTIVE_KINDS))
    rows = np.flatnonzero(carries)
    carries[rows] = tables.outermost(batch["rank"][rows], batch["t_end"][rows])
    counted: list[bool] = carries.tolist()
    return counted


_SHOWN = {"rank", "step", "kind", "algo", "t_start", "t_end", "t_reference"}  # in a slice besides its details


def _write_parquet(path: Path, trace: Trace, batches: Iterator[Table]) -> None:
    pyarrow, parquet = _pyarrow()
    types = {name: pyarrow.from_numpy_dtype(np.dtype(schema.EVENTS[name].dtype)) for name in COLUMNS[:-1]}
    types |= {field: pyarrow.dictionary(pyarrow.int32(), pyarrow.string()) for field in schema.LABEL_FIELDS}
    units = {name: {"units": schema.EVENTS[name].units} for name in COLUMNS[:-1]} | {"t_reference": {"units": "ns"}}
    layout = pyarrow.schema([pyarrow.field(name, types.get(name, pyarrow.int64()), metadata=units[name])
                             for name in COLUMNS])  # fmt: skip
    with parquet.ParquetWriter(path, layout) as writer:
        for batch in batches:
            arrays = [pyarrow.array(batch[name], pyarrow.string()).dictionary_encode() if name in schema.LABEL_FIELDS
                      else pyarrow.array(batch[name], layout.field(name).type) for name in COLUMNS]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=layout))


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("Parquet needs pyarrow; install it with: pip install 'mpicomp[parquet]'") from error
    return pyarrow, pyarrow.parquet


FORMATS: dict[str, Callable[..., None]] = {
    "perfetto": _write_chrome,
    "chrome": _write_chrome,
    "csv": _write_csv,
    "parquet": _write_parquet,
    "jsonl": _write_jsonl,
}
