"""Reading a trace that may come from anywhere: nothing is followed, unpacked or allocated before it is checked.

HDF5 can make a dataset out of another file, name a compression plug-in to load, or claim terabytes in a
kilobyte. None of that is in an honest trace, so all of it is refused.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from .._util.hdf5_heaps import check_heaps
from ..errors import DAMAGE, CorruptFile
from . import clock, schema, tables
from .atomic_output import PART_FILES, folder_of

Source = str | os.PathLike[str]  # of a trace: a file, or the folder of its parts
_LARGE = 64 << 20  # bytes a dataset may claim without having them stored
_MAX_RATIO = 1100  # deflate's best is 1032
_MAX_DEPTH = 3  # / -> group -> dataset, and one level for additions to come
_MAX_OBJECTS = 100_000
_OF_SOME_RANKS = ("events", "open", "steps", "metrics", "summary")  # what each part has for its own ranks
_PLAIN = (h5py.h5t.TypeIntegerID, h5py.h5t.TypeFloatID, h5py.h5t.TypeEnumID, h5py.h5t.TypeStringID)
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}


@contextmanager
def open_trace(path: Source) -> Iterator[Trace]:
    """Open a trace for reading, a file or a folder of its parts; what is wrong with it is raised as ``CorruptFile``."""
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
        raise FileNotFoundError(f"{path} is not written yet: its run goes on, or was killed and wants "
                                f"mpicomp trace recover {journals} -o {path}")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file: give a trace written by `--trace` or `mpicomp trace recover`")
    return [path]


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    with reading(path):
        file = h5py.File(path, "r")
    with file:
        with reading(path):
            if "events" not in file:
                raise CorruptFile("an HDF5 file, but no trace: it has no /events")
            seen = Counter[str]()
            _check_group(file, 0, seen)
            if seen["texts in heaps"]:  # ours are elsewhere, but a file may have been edited since
                check_heaps(path, file.id.get_create_plist().get_sizes())
        yield file


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """HDF5 reports damage by many kinds of exceptions; a reader of traces needs to know one."""
    try:
        yield
    except CorruptFile as error:
        raise CorruptFile(f"{path}: {error}") from None
    except PermissionError:
        raise
    except DAMAGE as error:
        raise CorruptFile(f"{path}: not a readable trace: {_text(str(error))}") from error


class Trace:
    """The columns of an open trace, read and checked when first used.

    A trace in several files reads as one: what each file has of its own ranks (events, steps, metrics, summary)
    is put together, what all of them know (attributes, ranks, clocks, names) comes from the first, ``file``.
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
        """The files one by one, each a trace of some of the ranks, so that not all events are in memory at a time."""
        if len(self.files) == 1:
            yield self
            return
        for file in self.files:
            yield Trace([file], Path(_text(file.filename)))

    def _check_parts(self) -> None:
        with reading(self.path):
            runs = {str(plain(file.attrs["run_id"])) for file in self.files}
            numbers = [int(file.attrs["part"]) for file in self.files]
            expected = int(self.file.attrs["n_parts"])
        if len(runs) > 1:
            raise CorruptFile(f"{self.path}: the files belong to {len(runs)} runs; keep one run in a folder")
        if numbers != list(range(expected)):
            missing = sorted({*range(min(expected, _MAX_OBJECTS))} - {*numbers})
            raise CorruptFile(f"{self.path}: expected {expected} files, got {len(numbers)}: {missing} are missing")

    @cached_property
    def missing_parts(self) -> str:
        """Of a part that was opened alone: which part it is and whose events it has; empty for a whole trace."""
        with reading(self.path):
            part, n_parts, first, last = (
                int(self.file.attrs.get(name, default))
                for name, default in (("part", 0), ("n_parts", 1), ("first_rank", 0), ("last_rank", 0))
            )
            if n_parts == len(self.files):
                return ""
            return f"part {part + 1} of {n_parts}: events of ranks {first}-{last} only; give the folder to see all"

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the file; those that hold JSON are unpacked."""
        with reading(self.path):
            facts = {_text(name): plain(value) for name, value in self.file.attrs.items()}
            facts["command_line"] = [_text(word) for word in json.loads(facts.get("command_line", "[]"))]
            environment = json.loads(facts.get("environment", "{}"))
            facts["environment"] = {_text(name): _text(environment[name]) for name in environment}
            facts["configuration"] = {_text(name): _clean(value) for name, value in
                                      json.loads(facts.get("configuration", "{}")).items()}  # fmt: skip
            return facts

    def table(self, name: str, columns: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Columns of a group, all equally long."""
        with reading(self.path):
            shared = name.split("/")[0] not in _OF_SOME_RANKS
            groups = [file[name] for file in self.files[: 1 if shared else None] if shared or name in file]
            table = {column: self._column(name, groups, column) for column in (columns or groups[0])}
            if len({len(values) for values in table.values()}) > 1:
                raise CorruptFile(f"the columns of /{name} differ in length")
            return table

    def _column(self, table: str, groups: list[h5py.Group], name: str) -> np.ndarray:
        """Unpacked once: the analyses of a report share most columns."""
        key = (table, name)
        if key not in self._columns:
            parts = [_of_expected_kind(group[name], table, name)[:] for group in groups]
            self._columns[key] = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return self._columns[key]

    def events(self, *columns: str) -> dict[str, np.ndarray]:
        """Columns of /events; codes and ranks are sure to have a meaning."""
        events = self.table("events", columns)
        limits = {field: len(self.vocabulary(field)) for field in schema.LABEL_FIELDS} | {"rank": self.n_ranks}
        for name in limits.keys() & events.keys():
            values = events[name]
            if len(values) and not 0 <= values.min() <= values.max() < limits[name]:
                raise CorruptFile(f"{self.path}: /events/{name} has values outside 0..{limits[name] - 1}")
        return events

    def vocabulary(self, field: str) -> list[str]:
        with reading(self.path):
            return [_text(name) for name in _of_expected_kind(self.file["vocab"][field], "vocab", field)[:]]

    def code(self, field: str, name: str) -> int:
        """The code of a name, or -1, which no row has."""
        names = self.vocabulary(field)
        return names.index(name) if name in names else -1

    def hostnames(self) -> list[str]:
        return [_text(name) for name in self.table("ranks", ["hostname"])["hostname"]]

    def status(self) -> list[str]:
        names = {code: name for name, code in schema.STATUS.items()}
        return [names.get(int(code), "unknown") for code in self.table("ranks", ["status"])["status"]]

    def metrics(self) -> dict[str, dict[str, np.ndarray]]:
        with reading(self.path):
            groups = [file["metrics"] for file in self.files]
            named: dict[str, list[h5py.Group]] = {}
            for group in groups:
                for link in group:
                    named.setdefault(str(plain(group[link].attrs.get("name", link))), []).append(group[link])
            return {name: self._metric(name, parts) for name, parts in named.items()}

    def _metric(self, name: str, parts: list[h5py.Group]) -> dict[str, np.ndarray]:
        table = {column: self._column(f"metrics named {name}", parts, column) for column in parts[0]}
        if len({len(values) for values in table.values()}) > 1:
            raise CorruptFile(f"the columns of the metric {name} differ in length")
        return table

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
        """ns by which any rank's corrected time may be off the reference rank's clock; of two ranks it may add up."""
        return clock.uncertainty(self.table("clock"))


def _check_group(group: h5py.Group, depth: int, seen: Counter[str]) -> None:
    for name in group.attrs:
        seen["objects"] += 1
        _check_attribute(group, name, seen)
    for name in group:
        seen["objects"] += 1
        where = _text(f"{group.name.rstrip('/')}/{name}")
        if depth >= _MAX_DEPTH or seen["objects"] > _MAX_OBJECTS:
            raise CorruptFile(f"{where}: nested too deeply or too many objects for a trace")
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise CorruptFile(f"{where} is a link to somewhere else; a trace has none")
        member = group[name]
        if isinstance(member, h5py.Group):
            _check_group(member, depth + 1, seen)
        elif isinstance(member, h5py.Dataset):
            _check_dataset(member, where, seen)
        else:
            raise CorruptFile(f"{where} is neither group nor dataset")


def _check_attribute(item: h5py.HLObject, name: str, seen: Counter[str]) -> None:
    """Refuse what is neither number nor text."""
    kind = item.attrs.get_id(name).get_type()
    if not isinstance(kind, _PLAIN):
        raise CorruptFile(_text(f"attribute {name} of {item.name} is neither number nor text"))
    seen["texts in heaps"] += isinstance(kind, h5py.h5t.TypeStringID) and kind.is_variable_str()


def _check_dataset(dataset: h5py.Dataset, where: str, seen: Counter[str]) -> None:
    if "units" in dataset.attrs:
        _check_attribute(dataset, "units", seen)
    created = dataset.id.get_create_plist()
    if created.get_external_count() or created.get_layout() == h5py.h5d.VIRTUAL:
        raise CorruptFile(f"{where} takes its data from other files; a trace has none")
    if dataset.dtype.kind not in "iufS" or dataset.ndim != 1:
        raise CorruptFile(f"{where}: expected one column of numbers or fixed strings, got {dataset.dtype}")
    filters = {created.get_filter(index)[0] for index in range(created.get_nfilters())}
    if filters - _FILTERS:
        raise CorruptFile(f"{where} needs the HDF5 filters {sorted(filters - _FILTERS)}; a trace needs none")
    claimed, stored = dataset.size * dataset.dtype.itemsize, dataset.id.get_storage_size()
    if claimed > _LARGE and claimed > _MAX_RATIO * stored:
        raise CorruptFile(f"{where} claims {claimed} bytes but stores {stored}")


def _of_expected_kind(dataset: h5py.Dataset, table: str, name: str) -> h5py.Dataset:
    """Whole numbers where the format has them, and so on: what is computed with a column relies on it."""
    if not isinstance(dataset, h5py.Dataset):
        raise CorruptFile(f"/{table}/{name} is a group, expected a column")
    columns = schema.METRICS if table.startswith("metrics") else schema.TABLES.get(table, {})
    if name in columns:
        expected = "iu" if columns[name].dtype[0] in "iu" else columns[name].dtype[0]
        if dataset.dtype.kind not in expected or (dataset.dtype.itemsize > 8 and expected != "S"):
            raise CorruptFile(f"/{table}/{name} is {dataset.dtype}, expected {columns[name].dtype}")
    return dataset


def plain(value: Any) -> Any:
    """An attribute as Python has it."""
    if isinstance(value, (bytes, str)):
        return _text(value)
    return value.item() if isinstance(value, np.generic) else value.tolist()


def _clean(value: Any) -> Any:
    """A value from JSON, its texts safe to print."""
    if isinstance(value, (list, dict)):
        return [_clean(one) for one in value] if isinstance(value, list) else _text(json.dumps(value))
    return _text(value) if isinstance(value, str) else value


def _text(value: str | bytes) -> str:
    """Text that is safe to print: a hostile file cannot drive the terminal."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return "".join(letter if letter.isprintable() else "?" for letter in text)
