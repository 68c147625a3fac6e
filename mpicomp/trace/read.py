"""Reading of traces, which may come from anywhere: `.._util.hdf5` checks a file before anything in it is used."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np

from .._util import hdf5
from .._util.hdf5 import printable
from ..errors import CorruptFile
from . import clock, schema, tables
from .files import PART_FILES, Source, folder_of
from .tables import Result, Table

_MAX_MISSING = 100_000  # parts of a trace that an error lists
_OF_SOME_RANKS = ("events", "open", "steps", "metrics", "summary")  # tables of which each part has its ranks' rows
_RULES = hdf5.Rules(
    levels=4,  # a metric's column has 3; one more for later versions
    kinds="iufS",
    filters=frozenset({h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}),
)


@contextmanager
def open_trace(path: Source) -> Iterator[Trace]:
    """Open a trace, a file or a folder of its parts, for reading; a damaged one raises ``CorruptFile``."""
    path = Path(path)
    with ExitStack() as stack:
        files = [stack.enter_context(_opened(part)) for part in _parts_of(path)]
        yield Trace(files, path)


def _parts_of(path: Path) -> list[Path]:
    if not path.exists() and folder_of(path).is_dir():
        path = folder_of(path)
    if path.is_dir():
        parts = sorted(path.glob(PART_FILES))
        if not parts:
            raise FileNotFoundError(f"{path} is a folder without {PART_FILES}: give a trace file or a folder of parts")
        return parts
    journals = path.with_name(f"{path.name}.spool")
    if not path.exists() and journals.is_dir():
        raise FileNotFoundError(f"{path} is not written yet: its run goes on, or was killed and needs "
                                f"mpicomp trace recover {journals} -o {path}")
    if not path.is_file():
        raise FileNotFoundError(f"no such trace: {path}; give a file written by `--trace` or `mpicomp trace recover`")
    return [path]


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    with reading(path):
        file = h5py.File(path, "r")
    with file:
        with reading(path):
            if "events" not in file:
                raise CorruptFile("an HDF5 file, but no trace: it has no /events")
            hdf5.check_contents(file, _RULES)
        yield file


def reading(path: Path) -> AbstractContextManager[None]:
    """Context in which errors caused by a damaged trace become ``CorruptFile``."""
    return hdf5.reading(path, "not a readable trace")


class Trace:
    """The columns of an open trace, read and checked when first used.

    A trace in several files reads as one: the rows that each file has of its ranks (events, steps, metrics, summary)
    are concatenated; attributes, ranks, clocks and names, which all files repeat, come from the first, ``file``.
    """

    def __init__(self, files: list[h5py.File], path: Path) -> None:
        self.files, self.file, self.path = files, files[0], path
        self._columns: dict[tuple[str, str], np.ndarray] = {}
        conventions = str(self.attributes.get("Conventions"))
        if conventions.rpartition(".")[0] != schema.CONVENTIONS.rpartition(".")[0]:
            raise CorruptFile(f"{path}: Conventions are {conventions}, expected {schema.CONVENTIONS}")
        if len(files) > 1:
            self._check_parts()
        self.n_ranks = len(self.table("ranks", ["rank"])["rank"])

    def parts(self) -> Iterator[Trace]:
        """Each file as a trace of some of the ranks, so that not all events are in memory at a time."""
        if len(self.files) == 1:
            yield self
            return
        for file in self.files:
            yield Trace([file], Path(printable(file.filename)))

    def _check_parts(self) -> None:
        with reading(self.path):
            runs = {str(plain(file.attrs["run_id"])) for file in self.files}
            numbers = [int(file.attrs["part"]) for file in self.files]
            expected = int(self.file.attrs["n_parts"])
        if len(runs) > 1:
            raise CorruptFile(f"{self.path}: the files belong to {len(runs)} runs; keep one run in a folder")
        if numbers != list(range(expected)):
            missing = sorted({*range(min(expected, _MAX_MISSING))} - {*numbers})
            raise CorruptFile(f"{self.path}: expected {expected} files, got {len(numbers)}: {missing} are missing")

    @cached_property
    def missing_parts(self) -> str:
        """Number and ranks of a part that was opened alone; empty for a whole trace."""
        with reading(self.path):
            part, n_parts, first, last = (
                int(self.file.attrs.get(name, default))
                for name, default in (("part", 0), ("n_parts", 1), ("first_rank", 0), ("last_rank", 0))
            )
            if n_parts == len(self.files):
                return ""
            return f"part {part + 1} of {n_parts}: events of ranks {first}-{last} only; give the folder to see all"

    @cached_property
    def attributes(self) -> Result:
        """Attributes of the file; those that hold JSON are unpacked."""
        with reading(self.path):
            attributes: Result = {printable(name): plain(value) for name, value in self.file.attrs.items()}
            command_line, environment, configuration = (
                json.loads(attributes.get(name, empty))
                for name, empty in (("command_line", "[]"), ("environment", "{}"), ("configuration", "{}"))
            )
            return attributes | {
                "command_line": [printable(word) for word in command_line],
                "environment": {printable(name): printable(value) for name, value in environment.items()},
                "configuration": {printable(name): _safe(value) for name, value in configuration.items()},
            }

    def table(self, name: str, columns: Sequence[str] | None = None) -> Table:
        """Columns of a group, all equally long."""
        with reading(self.path):
            shared = name.split("/")[0] not in _OF_SOME_RANKS
            groups = [file[name] for file in self.files[: 1 if shared else None] if shared or name in file]
            return self._table(name, groups, columns or groups[0], f"/{name}")

    def _table(self, name: str, groups: list[h5py.Group], columns: Iterable[str], shown: str) -> Table:
        table = {column: self._column(name, groups, column) for column in columns}
        if len({len(values) for values in table.values()}) > 1:
            raise CorruptFile(f"the columns of {shown} differ in length")
        return table

    def _column(self, table: str, groups: list[h5py.Group], name: str) -> np.ndarray:
        """A column, decompressed once: the analyses of a report share most columns."""
        key = (table, name)
        if key not in self._columns:
            parts = [_of_expected_kind(group[name], table, name)[:] for group in groups]
            self._columns[key] = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return self._columns[key]

    def events(self, *columns: str) -> Table:
        """Columns of /events, with codes and ranks in their valid ranges."""
        return self.bounded("events", columns, {field: len(self.vocabulary(field)) for field in schema.LABEL_FIELDS})

    def bounded(self, name: str, columns: Sequence[str] | None = None, limits: Mapping[str, int] = {}) -> Table:
        """Columns of a group; raise ``CorruptFile`` unless ranks, and the columns in ``limits``, are below theirs."""
        table = self.table(name, columns)
        for column, limit in {"rank": self.n_ranks, **limits}.items():
            values = table.get(column)
            if values is not None and len(values) and not 0 <= values.min() <= values.max() < limit:
                raise CorruptFile(f"{self.path}: /{name}/{column} has values outside 0..{limit - 1}")
        return table

    def vocabulary(self, field: str) -> list[str]:
        with reading(self.path):
            return [printable(name) for name in _of_expected_kind(self.file["vocab"][field], "vocab", field)[:]]

    def code(self, field: str, name: str) -> int:
        """The code of a name, or -1, which no row has."""
        names = self.vocabulary(field)
        return names.index(name) if name in names else -1

    def hostnames(self) -> list[str]:
        return [printable(name) for name in self.table("ranks", ["hostname"])["hostname"]]

    def status(self) -> list[str]:
        names = {code: name for name, code in schema.STATUS.items()}
        return [names.get(int(code), "unknown") for code in self.table("ranks", ["status"])["status"]]

    def metrics(self) -> dict[str, Table]:
        with reading(self.path):
            groups = [file["metrics"] for file in self.files]
            named: dict[str, list[h5py.Group]] = {}
            for group in groups:
                for link in group:
                    named.setdefault(str(plain(group[link].attrs.get("name", link))), []).append(group[link])
            return {name: self._table(f"metrics named {name}", parts, parts[0], f"the metric {name}")
                    for name, parts in named.items()}

    def corrected(self, rank: np.ndarray, t: np.ndarray) -> np.ndarray:
        """Times on the clock of the reference rank."""
        samples = self.table("clock", list(schema.CLOCK))
        result = np.array(t, np.int64)
        if samples["shared"].all():
            return result
        order = np.argsort(samples["rank"], kind="stable")
        bounds = np.searchsorted(samples["rank"][order], np.arange(self.n_ranks + 1))
        for (own,), rows in tables.groups(rank):
            chosen = order[bounds[own] : bounds[own + 1]]
            result[rows] = clock.corrected(result[rows], {name: column[chosen] for name, column in samples.items()})
        return result

    def clock_uncertainty(self) -> int:
        """Largest error (ns) of a rank's corrected time; between two ranks the errors add up."""
        return clock.uncertainty(self.table("clock"))


def _of_expected_kind(dataset: h5py.Dataset, table: str, name: str) -> h5py.Dataset:
    """A column of the kind that the format gives it: integers, floats or texts."""
    if not isinstance(dataset, h5py.Dataset):
        raise CorruptFile(f"/{table}/{name} is a group, expected a column")
    columns = schema.METRICS if table.startswith("metrics") else schema.TABLES.get(table, {})
    if name in columns:
        expected = "iu" if columns[name].dtype[0] in "iu" else columns[name].dtype[0]
        if dataset.dtype.kind not in expected or (dataset.dtype.itemsize > 8 and expected != "S"):
            raise CorruptFile(f"/{table}/{name} is {dataset.dtype}, expected {columns[name].dtype}")
    return dataset


def plain(value: bytes | str | np.generic | np.ndarray) -> object:
    """An attribute as a Python value, its text safe to print."""
    return printable(value) if isinstance(value, (bytes, str)) else value.tolist()


def _safe(value: object) -> object:
    """A value from JSON, its texts safe to print."""
    if isinstance(value, list):
        return [_safe(one) for one in value]
    if isinstance(value, dict):
        return printable(json.dumps(value))
    return printable(value) if isinstance(value, str) else value
