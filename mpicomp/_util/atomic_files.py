"""Files that are not lost: what is written aside reaches the disk before it gets its name, and replaces no input."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ..errors import RefusedOverwrite


def fsync(path: Path) -> None:
    """Wait until a file's contents, or a folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def refuse_inputs(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse an output that is one of the files that are read, by whatever name or link: it would be lost.

    Raises
    ------
    RefusedOverwrite
    """
    for one in inputs:
        if output.exists() and one.exists() and os.path.samefile(output, one):
            raise RefusedOverwrite(f"{output} is the input {one} itself: give another path for the output")


def replace(part: Path, target: Path) -> None:
    """Give the finished file ``part`` the name ``target``, in one step that a crash cannot halve."""
    fsync(part)
    os.replace(part, target)
    fsync(target.parent)
