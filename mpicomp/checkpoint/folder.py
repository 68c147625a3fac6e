"""The folder of a run's checkpoints: names, the manifest, what is complete, what is kept. Rank 0's business.

``DIR/step-000000120/`` holds ``common.h5``, one ``rank_00000.h5`` a rank and ``manifest.json``, which tells the bytes
and CRC-32 of all of them and has a CRC-32 itself. It is written as ``step-000000120.part``, renamed to
``step-000000120.whole`` when everything is on the disk, and to its name when the checkpoints of the same or a later
step, which are of another course, are set aside. The last two are complete; ``.whole`` counts if the other is absent.
``DIR/latest`` is a text file with the newest name, for people and scripts; reading goes by the folders.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

from .._util.atomic_files import fsync, replace
from ..errors import CorruptFile, MpicompError

FORMAT, VERSION = "mpicomp-checkpoint", 1
MANIFEST, COMMON, LATEST = "manifest.json", "common.h5", "latest"
LONGEST = 1 << 28  # bytes of a manifest, which names every rank
_NAME = re.compile(r"step-(\d{9,})(\.whole)?")


def name_of(step: int) -> str:
    return f"step-{step:09d}"


def part_of(rank: int) -> str:
    return f"rank_{rank:05d}.h5"


def steps_in(root: Path) -> list[int]:
    """Steps of the checkpoints that were completed, ascending."""
    return list(folders_in(root))


def folders_in(root: Path) -> dict[int, Path]:
    """The complete checkpoints by step, ascending."""
    found = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    complete = {int(match[1]): path for path in reversed(found)  # "step-N" after "step-N.whole", which it replaces
                if (match := _NAME.fullmatch(path.name))}  # fmt: skip
    return dict(sorted(complete.items()))


def check_folder(root: str | os.PathLike[str]) -> None:
    """Make the folder for checkpoints and try to write there: before a training, rather than at its end. Local.

    Raises
    ------
    MpicompError
        Nothing can be written into it.
    """
    with _made(Path(root)), tempfile.TemporaryFile(dir=root):
        pass


def begin(root: Path, step: int) -> Path:
    """Make the folder that the ranks write into; remove or finish what a killed job left."""
    part = root / f"{name_of(step)}.part"
    with _made(root):
        for path in root.glob("step-[0-9]*.whole"):
            target = path.with_suffix("")
            if target.exists():  # the job was killed while another course was still in effect
                shutil.rmtree(path)
            else:
                path.rename(target)
        if part.exists():
            shutil.rmtree(part)
        part.mkdir()
    return part


@contextmanager
def _made(root: Path) -> Iterator[None]:
    """Make the folder, if need be; what it refuses, then or later in the block, is one error."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = "it is a file" if root.is_file() else error.strerror
        raise MpicompError(f"cannot write checkpoints into {root}: {reason}; choose another folder") from None


def finish(root: Path, step: int, facts: dict[str, Any], keep: int) -> Path:
    """Write the manifest, give the folder its name and point ``latest`` at it; then drop what is too old."""
    part, target = root / f"{name_of(step)}.part", root / name_of(step)
    whole = root / f"{target.name}.whole"
    try:
        write_manifest(part / MANIFEST, facts)
        replace(part, whole)  # killed from here on, this checkpoint is found where its predecessor no longer is
        _set_aside(root, step)
        replace(whole, target)
        text = root / f"{LATEST}.part"
        text.write_text(f"{target.name}\n")
        replace(text, root / LATEST)
        for old in steps_in(root)[:-keep]:
            _drop(root / name_of(old))
    except OSError as error:
        raise MpicompError(f"cannot write the checkpoint {target}: {error.strerror}") from None
    return target


def _set_aside(root: Path, step: int) -> None:
    """A run that went back behind checkpoints leaves them under another name: they are of another course.

    The newest goes first, so that what is left at any moment ends with a checkpoint of that course or with the new one.
    """
    for other in reversed(steps_in(root)):
        old, number = root / name_of(other), 1
        if other >= step and old.exists():
            while (aside := root / f"{old.name}.aside{number}").exists():
                number += 1
            old.rename(aside)


def _drop(folder: Path) -> None:
    """Remove a checkpoint; killed in between, nothing is left that has a checkpoint's name."""
    old = folder.with_name(f"{folder.name}.old")
    if old.exists():
        shutil.rmtree(old)
    folder.rename(old)
    shutil.rmtree(old)


def write_manifest(path: Path, facts: dict[str, Any]) -> None:
    text = _canonical(facts)
    path.write_text(json.dumps({"crc32": crc32(text.encode()), "manifest": facts}, indent=1, sort_keys=True))
    fsync(path)


def read_manifest(path: Path) -> dict[str, Any]:
    """The facts of a checkpoint.

    Raises
    ------
    CorruptFile
        There is no manifest, it is damaged, or of a later version.
    """
    if not path.is_file() or path.stat().st_size > LONGEST:
        raise CorruptFile(f"{path} is missing or too long")
    try:
        document = json.loads(path.read_bytes())
        facts: dict[str, Any] = document["manifest"]
        expected = document["crc32"]
        good = isinstance(facts, dict) and crc32(_canonical(facts).encode()) == expected
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFile(f"{path} is damaged: {error}") from None
    if not good:
        raise CorruptFile(f"{path} is damaged: its checksum is not the one it was written with")
    if facts.get("format") != FORMAT or facts.get("version") != VERSION:
        raise CorruptFile(f"{path} must be of format {FORMAT} version {VERSION}, got {facts.get('format')} version "
                          f"{facts.get('version')}: read it with the mpicomp that wrote it")
    return facts


def _canonical(facts: Any) -> str:
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))


def remove_part(root: Path, step: int) -> None:
    """Clean up after a save that failed."""
    shutil.rmtree(root / f"{name_of(step)}.part", ignore_errors=True)


def shared_by_all(part: Path) -> MpicompError | None:
    """What is to be said by a rank that does not see the folder that rank 0 made."""
    if part.is_dir() and os.access(part, os.W_OK):
        return None
    return MpicompError(f"this rank cannot write into {part}: checkpoints need a folder that all ranks share")
