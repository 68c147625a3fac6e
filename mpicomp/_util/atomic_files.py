"""Durable output files: written beside, synced to disk, renamed. Only ``force`` replaces a file, and never an input."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from ..errors import RefusedOverwrite

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # raised only while a file is being written


def fsync(path: Path) -> None:
    """Wait until a file's contents, or a folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace(part: Path, target: Path) -> None:
    """Rename the finished file or folder ``part`` to ``target``; a crash leaves one of the two, complete."""
    fsync(part)
    os.replace(part, target)
    fsync(target.parent)


def refuse_inputs(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse an output that is one of the input files, under any name or link.

    Raises
    ------
    RefusedOverwrite
    """
    for one in inputs:
        if output.exists() and one.exists() and os.path.samefile(output, one):
            raise RefusedOverwrite(f"{output} is the input {one} itself: give another path for the output")


def check_output(path: Path, force: bool, inputs: Iterable[Path] = ()) -> None:
    """Raise, before the work, the error that `write_output` would raise; nothing is left behind."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: its folder does not exist; make it, or give another path")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give a file name")
    refuse_inputs(path, inputs)
    if not force:
        refuse_existing(path)
        _refuse_unfinished(path)
    try:  # permission bits do not suffice: root passes them even on a read-only file system
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise _not_written(path, error) from None


def refuse_existing(path: Path) -> None:
    """Raise ``RefusedOverwrite`` if there is a file, folder or dangling link of this name."""
    if os.path.lexists(path):
        raise _existing(path)


def write_output(path: Path, force: bool, fill: Callable[[Path], object]) -> None:
    """Let ``fill`` create a file or folder ``PATH.part``, then rename it to ``path``. On an error nothing is left.

    Raises
    ------
    RefusedOverwrite
        Without ``force``: ``path`` exists, or its ``.part`` of another process.
    OSError
        The file system refused; the text names the file and the remedy.
    """
    part = _part(path)
    if force:
        remove(part)
    try:
        _refuse_unfinished(path)
        fill(part)
        fsync(part)
    except FileExistsError as error:  # the part belongs to another process: leave it
        raise (error if isinstance(error, RefusedOverwrite) else _unfinished(part)) from None
    except BaseException as error:
        remove(part)
        if isinstance(error, OSError) and (error.errno in DISK_FULL or error.filename == str(part)):
            raise _not_written(path, error) from error
        raise
    try:
        _rename(part, path, force)
    except BaseException:
        remove(part)
        raise
    fsync(path.parent)


def write_bytes(path: Path, force: bool, content: bytes) -> None:
    """`write_output` of ``content``."""

    def create(part: Path) -> None:
        with part.open("xb") as file:
            file.write(content)

    write_output(path, force, create)


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _rename(part: Path, path: Path, force: bool) -> None:
    if not force:
        refuse_existing(path)
    if part.is_dir() and os.path.lexists(path):  # a rename cannot replace a folder that is not empty
        old = path.with_name(f"{path.name}.old")
        os.rename(path, old)
        os.rename(part, path)
        remove(old)
    elif force or part.is_dir():
        os.replace(part, path)
    else:
        try:
            os.link(part, path)  # unlike a rename it never replaces a file that appeared meanwhile
            part.unlink()
        except FileExistsError:
            raise _existing(path) from None
        except OSError:  # no hard links on this file system
            os.rename(part, path)


def _existing(path: Path) -> RefusedOverwrite:
    return RefusedOverwrite(f"{path} exists already: give another path, or --force (force=True) to replace it")


def _refuse_unfinished(path: Path) -> None:
    if os.path.lexists(_part(path)):
        raise _unfinished(_part(path))


def _unfinished(part: Path) -> RefusedOverwrite:
    return RefusedOverwrite(
        f"{part} exists already: another command is writing it, or one was killed; then remove it or give force"
    )


def _not_written(path: Path, error: OSError) -> OSError:
    """An error of the same class whose text says which file, why, and the remedy."""
    room = "make room there or " if error.errno in DISK_FULL else ""
    return type(error)(f"cannot write {path}: {error.strerror or error}; {room}give another path")
