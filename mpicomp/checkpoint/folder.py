"""The folder of a run's checkpoints, as rank 0 manages it: names, manifests, complete and old checkpoints.

``DIR/step-000000120/`` holds ``common.h5``, one ``rank_00000.h5`` per rank and ``manifest.json`` with the bytes and
CRC-32 of all of them and a CRC-32 of its own. It is written as ``step-000000120.NUMBER.part``, a number of this save's
own, so that the files of two jobs never mix. It is renamed to ``step-000000120.whole`` when everything is on the disk,
and to its name when the checkpoints of the same or a later step, which belong to another course of the run, are set
aside. The last two are complete; ``.whole`` counts if the other is absent. ``DIR/latest`` is a text file with the
newest name, for people and scripts; `load` lists the folders.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, TypeVar, cast
from zlib import crc32

import numpy as np

from .._util.atomic_files import remove, replace, write_bytes
from ..errors import CorruptFile, InvalidArgument, MpicompError

FORMAT, VERSION = "mpicomp-checkpoint", 1
MANIFEST, COMMON, LATEST = "manifest.json", "common.h5", "latest"
LONGEST = 1 << 28  # bytes of a manifest, which lists every rank
_NAME = re.compile(r"step-(\d{9}|[1-9]\d{9,})(\.whole)?", re.ASCII)  # what `name_of` makes: others are the user's
_LEFT = re.compile(r"step-\d{9,}\.(([0-9a-f]{8}\.)?part|[0-9a-f]{8}\.old)", re.ASCII)  # of a save that was killed

T = TypeVar("T")
Settings: TypeAlias = dict[str, Any]  # values that JSON can hold


class Manifest(TypedDict):
    """Contents of ``manifest.json``; a file is listed as [bytes, CRC-32]."""

    format: str
    version: int
    mpicomp: str
    step: int
    created: str
    complete: bool
    settings: Settings
    common: list[int]
    parts: list[list[int]]  # of each rank
    workers: dict[str, list[int]]  # of each rank, by the reducer's name
    places: dict[str, list[list[int]]]  # node and slice of each rank, by the reducer's name; empty for whole vectors


def plain(settings: Mapping[str, object]) -> Settings:
    """Settings as a manifest holds them: NumPy's numbers become Python's, tuples lists."""

    def number(value: object) -> object:
        if not isinstance(value, np.generic) or isinstance(value, np.longdouble | np.clongdouble):  # item() is itself
            raise TypeError(type(value).__name__)
        return value.item()

    try:
        return cast(Settings, json.loads(json.dumps(settings, default=number)))
    except (TypeError, ValueError) as error:
        raise InvalidArgument("settings must be numbers, texts, lists, and dicts with texts as keys, got "
                              f"{error}: pass str() of it") from None


def name_of(step: int) -> str:
    return f"step-{step:09d}"


def part_of(rank: int) -> str:
    return f"rank_{rank:05d}.h5"


def steps_in(root: Path) -> list[int]:
    """Steps of the complete checkpoints, ascending."""
    return list(folders_in(root))


def folders_in(root: Path) -> dict[int, Path]:
    """The complete checkpoints by step, ascending."""
    found = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    complete = {int(match[1]): path for path in reversed(found)  # "step-N" after "step-N.whole", which it replaces
                if (match := _NAME.fullmatch(path.name))}  # fmt: skip
    return dict(sorted(complete.items()))


def check_folder(root: str | os.PathLike[str]) -> None:
    """Make the folder for checkpoints and try to write there, at the start of a training. Local.

    Raises
    ------
    MpicompError
        Nothing can be written into it.
    """
    with _made(Path(root)), tempfile.TemporaryFile(dir=root):
        pass


def begin(root: Path, step: int) -> Path:
    """Make the folder that the ranks write into; remove or finish the remains of a killed job."""
    part = root / f"{name_of(step)}.{secrets.token_hex(4)}.part"
    with _made(root):
        for path in list(root.iterdir()):
            if _LEFT.fullmatch(path.name):  # of any step
                remove(path) if path.suffix == ".old" else _drop(path)
            elif (match := _NAME.fullmatch(path.name)) and match[2]:
                _end_rename(path)
        part.mkdir()
    return part


def _end_rename(whole: Path) -> None:
    """Do what a job that was killed between its two renames left undone."""
    target = whole.with_suffix("")
    if target.exists():  # it had not yet set the other course aside
        shutil.rmtree(whole)
    else:
        whole.rename(target)


@contextmanager
def _made(root: Path) -> Iterator[None]:
    """Make the folder if it does not exist; errors of the file system, here or in the block, are one error."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = "it is a file" if root.is_file() else error.strerror
        raise MpicompError(f"cannot write checkpoints into {root}: {reason}; choose another folder") from None


def finish(root: Path, step: int, part: Path, manifest: Manifest, keep: int) -> Path:
    """Write the manifest, rename the folder and update ``latest``; then remove old checkpoints."""
    target = root / name_of(step)
    whole = root / f"{target.name}.whole"
    try:
        write_manifest(part / MANIFEST, manifest)
        replace(part, whole)  # after a kill from here on, `load` finds this checkpoint
        _set_aside(root, step)
        replace(whole, target)
        write_bytes(root / LATEST, True, f"{target.name}\n".encode())
        for old in steps_in(root)[:-keep]:
            _drop(root / name_of(old))
    except OSError as error:
        raise MpicompError(f"cannot write the checkpoint {target}: {error.strerror or error}") from None
    return target


def _set_aside(root: Path, step: int) -> None:
    """Rename the checkpoints of this and later steps, which belong to another course of the run.

    The newest is renamed first, so that the last of the others always belongs to that course.
    """
    for other in reversed(steps_in(root)):
        old, number = root / name_of(other), 1
        if other >= step and old.exists():
            while (aside := root / f"{old.name}.aside{number}").exists():
                number += 1
            old.rename(aside)


def _drop(folder: Path) -> None:
    """Remove a checkpoint, or an unfinished one; a kill in between leaves nothing with its name.

    The number is for `begin`, which removes no ``step-000000120.old``: a user may have made that.
    """
    old = folder.with_name(f"{folder.name.partition('.')[0]}.{secrets.token_hex(4)}.old")
    folder.rename(old)
    remove(old)  # which may be a link to another disk


def write_manifest(path: Path, manifest: Manifest) -> None:
    written = as_read(manifest)
    document = {"crc32": _crc(written), "manifest": written}
    write_bytes(path, True, json.dumps(document, indent=1, sort_keys=True).encode())


def as_read(document: T) -> T:
    """A document as JSON gives it back: its keys are texts, in whose order a checksum takes them."""
    read: T = json.loads(json.dumps(document))
    return read


def read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint.

    Raises
    ------
    CorruptFile
        There is no manifest, it is damaged, or of a later version.
    """
    if not path.is_file() or path.stat().st_size > LONGEST:
        raise CorruptFile(f"{path} is missing or too long")
    try:
        document = json.loads(path.read_bytes())
        manifest: Manifest = document["manifest"]
        expected = document["crc32"]
        good = isinstance(manifest, dict) and _crc(manifest) == expected
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFile(f"{path} is damaged: {error}") from None
    if not good:
        raise CorruptFile(f"{path} is damaged: its checksum is not the one it was written with")
    if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
        raise CorruptFile(f"{path} must be of format {FORMAT} version {VERSION}, got {manifest.get('format')} version "
                          f"{manifest.get('version')}: read it with the mpicomp that wrote it")
    return manifest


def check_manifest(path: Path, manifest: Manifest) -> None:
    """Refuse a manifest with a right checksum that is not of the form of `Manifest`."""
    listed = manifest.get("parts")
    pairs = [manifest.get("common"), *(listed if isinstance(listed, list) and listed else [None])]
    numbers = all(isinstance(pair, list) and len(pair) == 2 and all(isinstance(n, int) and n >= 0 for n in pair)
                  for pair in pairs)  # fmt: skip
    if not numbers or not {"step", "settings", "complete", "workers"} <= manifest.keys():
        raise CorruptFile(f"{path / MANIFEST} lacks entries that a checkpoint of this version has")


def _crc(manifest: Manifest) -> int:
    return crc32(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode())


def remove_part(part: Path) -> None:
    """Remove the folder of a save that failed."""
    shutil.rmtree(part, ignore_errors=True)


def check_shared(part: Path) -> None:
    """Raise MpicompError on a rank that cannot write into the folder that rank 0 made."""
    if not os.access(part, os.W_OK | os.X_OK):
        raise MpicompError(f"this rank cannot write into {part}: checkpoints need a folder that all ranks share, and "
                           "that no other job saves into")
