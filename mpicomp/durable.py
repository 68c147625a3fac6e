"""Files that a crash leaves whole: what is written aside reaches the disk before it gets its name."""

from __future__ import annotations

import os
from pathlib import Path


def fsync(path: Path) -> None:
    """Wait until a file's contents, or a folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace(part: Path, target: Path) -> None:
    """Give the finished file ``part`` the name ``target``, in one step that a crash cannot halve."""
    fsync(part)
    os.replace(part, target)
    fsync(target.parent)
