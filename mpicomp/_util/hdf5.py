"""HDF5 files: written so that a full disk is one error, and those from elsewhere checked before they are read.

Checks reject contents that reach into other files, claim memory or crash HDF5. Texts must have a fixed length. HDF5
keeps those of variable length in heaps without a checksum, and HDF5 2.0 never returns from a heap in which an object
claims no length.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np

from ..errors import DAMAGE, CorruptFile

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NUMBERS = (h5py.h5t.TypeIntegerID, h5py.h5t.TypeFloatID, h5py.h5t.TypeEnumID)
_SCALES = ("DIMENSION_LIST", "REFERENCE_LIST")  # object references that HDF5's dimension scales write; never read
_MAX_OBJECTS = 100_000
_UNSTORED = 64 << 20  # bytes that a compressed dataset may claim without storing them
_MAX_RATIO = 1100  # of a compressed dataset; deflate's best is 1032


class Rules(NamedTuple):
    """The contents that a format allows."""

    levels: int  # of names below the root
    kinds: str  # of the datasets' dtypes
    filters: frozenset[int] = frozenset()
    columns: bool = True  # datasets have one dimension


@contextmanager
def creating(path: Path, **options: Any) -> Iterator[h5py.File]:
    """Create an HDF5 file, which must not exist; what the file system refuses is raised when it has been closed.

    HDF5 2.0 cannot close a file of many objects on a full disk: it reports every object, and the process crashes. So
    HDF5 never hears of the failure.
    """
    with _Output(path, "x+") as output:
        try:
            with h5py.File(output, "w", **options) as contents:
                yield contents
        except Exception:
            if output.failure is None:
                raise
        if isinstance(output.failure, OSError):
            raise OSError(output.failure.errno, output.failure.strerror, str(path)) from None
        if output.failure is not None:
            raise output.failure


class _Output(io.FileIO):
    """A file for HDF5 that keeps its first failure, or an interrupt, and claims that everything else was written."""

    failure: BaseException | None = None

    def write(self, data: ReadableBuffer) -> int:
        content, written = memoryview(data), 0
        while self.failure is None and written < len(content):
            written += self._attempt(super().write, content[written:])
        return len(content)

    def truncate(self, size: int | None = None) -> int:
        if self.failure is None:
            self._attempt(super().truncate, size)
        return size or 0

    def _attempt(self, work: Callable[[Any], int], given: object) -> int:
        try:
            return work(given)
        except BaseException as error:
            self.failure = error
            return 0


@contextmanager
def reading(source: object, expected: str) -> Iterator[None]:
    """Raise every error that HDF5, JSON and NumPy raise for a damaged file as ``CorruptFile`` naming ``source``."""
    try:
        yield
    except CorruptFile as error:
        raise CorruptFile(f"{source}: {error}") from None
    except PermissionError:
        raise
    except DAMAGE as error:
        raise CorruptFile(f"{source}: {expected}: {printable(' '.join(str(error).split()))}") from error


def check_contents(file: h5py.File, rules: Rules) -> None:
    """Reject a file before anything is read from it.

    Raises
    ------
    CorruptFile
        For links, virtual and external data, types other than numbers and texts of fixed length, filters that the
        format does not have, and datasets that claim more bytes than the file can hold.
    """
    objects = 0

    def check(group: h5py.Group, level: int) -> None:
        nonlocal objects
        objects += _check_attributes(group) + len(group)
        for name in group:
            where = repr(f"{group.name.rstrip('/')}/{name}")
            if level > rules.levels or objects > _MAX_OBJECTS:
                raise CorruptFile(f"{where}: nested too deeply, or too many objects")
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise CorruptFile(f"{where} is a link to another place")
            member = group[name]
            if isinstance(member, h5py.Group):
                check(member, level + 1)
            elif isinstance(member, h5py.Dataset):
                objects += _check_attributes(member)
                _check_dataset(member, where, rules)
            else:
                raise CorruptFile(f"{where} is neither group nor dataset")

    check(file, 1)


def _check_attributes(item: h5py.HLObject) -> int:
    """Reject attributes that are neither numbers nor texts of fixed length; return how many there are."""
    names = [name for name in item.attrs if name not in _SCALES]
    for name in names:
        kind = item.attrs.get_id(name).get_type()
        text = isinstance(kind, h5py.h5t.TypeStringID)
        if text and kind.is_variable_str():
            raise CorruptFile(f"attribute {name!r} of {item.name!r} is a text of variable length, expected fixed")
        if not text and not isinstance(kind, _NUMBERS):
            raise CorruptFile(f"attribute {name!r} of {item.name!r} is neither number nor text")
    return len(names)


def _check_dataset(dataset: h5py.Dataset, where: str, rules: Rules) -> None:
    created = dataset.id.get_create_plist()
    if created.get_external_count() or created.get_layout() == h5py.h5d.VIRTUAL:
        raise CorruptFile(f"{where} takes its data from other files")
    if dataset.dtype.kind not in rules.kinds or (rules.columns and dataset.ndim != 1):
        expected = f"{'one column' if rules.columns else 'an array'} of numbers or fixed strings"
        raise CorruptFile(f"{where}: expected {expected}, got {dataset.dtype}{list(dataset.shape)}")
    filters = {created.get_filter(index)[0] for index in range(created.get_nfilters())}
    if filters - rules.filters:
        raise CorruptFile(f"{where} needs the HDF5 filters {sorted(filters - rules.filters)}, which the format lacks")
    claimed, stored = dataset.size * dataset.dtype.itemsize, dataset.id.get_storage_size()
    limit = max(_UNSTORED, _MAX_RATIO * stored) if rules.filters else min(stored, dataset.file.id.get_filesize())
    if claimed > limit:
        raise CorruptFile(f"{where} claims {claimed} bytes but stores {stored}")


def describe(item: h5py.HLObject, attributes: Mapping[str, object]) -> None:
    """Set attributes; texts get a fixed length, so that HDF5 keeps them under the item's checksum."""
    for name, value in attributes.items():
        if isinstance(value, str):
            text = value.encode(errors="backslashreplace")  # texts from the system may hold what UTF-8 cannot
            item.attrs.create(name, text, dtype=h5py.string_dtype("utf-8", max(1, len(text))))
        else:
            item.attrs[name] = value


def fixed_texts(texts: list[str]) -> np.ndarray:
    """Texts as a column of fixed length, UTF-8."""
    encoded = [text.encode() for text in texts]
    return np.array(encoded, h5py.string_dtype("utf-8", max(map(len, encoded), default=0) or 1))


def printable(value: str | bytes) -> str:
    """Text without control characters: a hostile file cannot drive the terminal."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return "".join(letter if letter.isprintable() else "?" for letter in text)
