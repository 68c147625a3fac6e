"""Paths of a trace: the file ``run.h5``, or for a very large run the folder ``run.h5.d`` of its parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from .._util.atomic_files import check_output, refuse_existing, remove, write_output
from ..errors import RefusedOverwrite

PART_FILES = "part*.h5"

Source = str | os.PathLike[str]  # of a trace: a file, or the folder of its parts


def folder_of(path: Path) -> Path:
    """Folder that replaces the file ``path`` if the trace is too large for one file."""
    return path.with_name(path.name + ".d")


def files_of(trace: Source) -> list[Path]:
    """All files that may be read of a trace, in either form."""
    path = Path(trace)
    return [path, *(path if path.is_dir() else folder_of(path)).glob(PART_FILES)]


def check_trace(path: Path, force: bool, inputs: Iterable[Path] = ()) -> None:
    """`check_output` for a trace, which may become the file ``path`` or the folder ``folder_of(path)``."""
    check_output(path, force, inputs)
    folder = folder_of(path)
    if not force:
        refuse_existing(folder)
    elif os.path.lexists(folder) and (not folder.is_dir() or {*folder.iterdir()} - {*folder.glob(PART_FILES)}):
        raise RefusedOverwrite(f"{folder} holds more than a trace: remove it yourself, or give another path")


def write_trace(path: Path, force: bool, in_parts: bool, fill: Callable[[Path], object]) -> Path:
    """`write_output` for a trace; returns the path written. With ``force`` the other form is removed."""
    check_trace(path, force)
    target, other = (folder_of(path), path) if in_parts else (path, folder_of(path))
    write_output(target, force, fill)
    if force:
        remove(other)
    return target
