"""Reading a trace that may come from anywhere: nothing is followed, unpacked or allocated before it is checked.

HDF5 can make a dataset out of another file, name a compression plug-in to load, or claim terabytes in a
kilobyte. None of that is in an honest trace, so all of it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np

from ..errors import CorruptFile
from . import clock, schema

_LARGE = 4 << 30  # bytes a dataset may claim without having them stored
_MAX_RATIO = 1000
_MAX_DEPTH = 3  # / -> group -> dataset, and one level for additions to come
_MAX_OBJECTS = 100_000
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}


@contextmanager
def open_trace(path) -> Iterator[Trace]:
    """Open a trace for reading; what is wrong with the file is raised as ``CorruptFile``."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file: give a trace written by `--trace` or `mpicomp trace recover`")
    with _reading(path):
        file = h5py.File(path, "r")
    with file:
        with _reading(path):
            _check_group(file, depth=0, seen=[0])
        yield Trace(file, path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """HDF5 reports damage by many kinds of exceptions; a reader of traces needs to know one."""
    try:
        yield
    except CorruptFile as error:
        raise CorruptFile(f"{path}: {error}") from None
    except PermissionError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError) as error:
        raise CorruptFile(f"{path}: not a readable trace: {_text(str(error))}") from error


class Trace:
    """The columns of an open trace, read and checked when first used."""

    def __init__(self, file: h5py.File, path: Path) -> None:
        self.file = file
        self.path = path
        self._columns: dict[tuple[str, str], np.ndarray] = {}
        conventions = str(self.attributes.get("Conventions"))
        if conventions.rpartition(".")[0] != schema.CONVENTIONS.rpartition(".")[0]:
            raise CorruptFile(f"{path}: Conventions are {conventions}, expected {schema.CONVENTIONS}")
        self.n_ranks = len(self.table("ranks", ["rank"])["rank"])

    @cached_property
    def attributes(self) -> dict:
        """Attributes of the file; those that hold JSON are unpacked."""
        with _reading(self.path):
            plain = {_text(name): _plain(value) for name, value in self.file.attrs.items()}
            plain["command_line"] = [_text(word) for word in json.loads(plain.get("command_line", "[]"))]
            environment = json.loads(plain.get("environment", "{}"))
            plain["environment"] = {_text(name): _text(environment[name]) for name in environment}
            return plain

    def table(self, name: str, columns: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Columns of a group, all equally long."""
        with _reading(self.path):
            group = self.file[name]
            table = {column: self._column(group, column) for column in (columns or group)}
            if len({len(values) for values in table.values()}) > 1:
                raise CorruptFile(f"the columns of /{name} differ in length")
            return table

    def _column(self, group: h5py.Group, name: str) -> np.ndarray:
        """Unpacked once: the analyses of a report share most columns."""
        key = (group.name, name)
        if key not in self._columns:
            self._columns[key] = group[name][:]
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
        with _reading(self.path):
            return [_text(name) for name in self.file["vocab"][field][:]]

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
        with _reading(self.path):
            group = self.file["metrics"]
            names = {link: _text(str(group[link].attrs.get("name", link))) for link in group}
        return {name: self.table(f"metrics/{link}") for link, name in names.items()}

    def corrected(self, rank: np.ndarray, t: np.ndarray) -> np.ndarray:
        """Times on the clock of the reference rank."""
        samples = self.table("clock")
        result = np.array(t, np.int64)
        for own in np.unique(rank):
            rows, chosen = rank == own, samples["rank"] == own
            result[rows] = clock.corrected(result[rows], {name: column[chosen] for name, column in samples.items()})
        return result

    def clock_uncertainty(self) -> int:
        """How far two corrected times of different ranks may be off, in ns."""
        return clock.uncertainty(self.table("clock"))


def _check_group(group: h5py.Group, depth: int, seen: list[int]) -> None:
    for name in group:
        seen[0] += 1
        where = _text(f"{group.name.rstrip('/')}/{name}")
        if depth >= _MAX_DEPTH or seen[0] > _MAX_OBJECTS:
            raise CorruptFile(f"{where}: nested too deeply or too many objects for a trace")
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise CorruptFile(f"{where} is a link to somewhere else; a trace has none")
        member = group[name]
        if isinstance(member, h5py.Group):
            _check_group(member, depth + 1, seen)
        elif isinstance(member, h5py.Dataset):
            _check_dataset(member, where)
        else:
            raise CorruptFile(f"{where} is neither group nor dataset")


def _check_dataset(dataset: h5py.Dataset, where: str) -> None:
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


def _plain(value):
    if isinstance(value, np.generic):
        return value.item()
    return _text(value) if isinstance(value, (bytes, str)) else value.tolist()


def _text(value) -> str:
    """Text that is safe to print: a hostile file cannot drive the terminal."""
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
    return "".join(letter if letter.isprintable() else "?" for letter in text)
