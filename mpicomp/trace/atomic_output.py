"""Writing an output aside and renaming it: whole or absent, and nothing replaced that nobody gave up."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from .._util.atomic_files import fsync, refuse_inputs
from ..errors import RefusedOverwrite

PART_FILES = "part*.h5"  # what a trace in several files consists of
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # only a file that is being written meets these


def folder_of(path: Path) -> Path:
    """Where a trace goes that is too large for the one file ``path``."""
    return path.with_name(path.name + ".d")


def files_of(trace: Path) -> list[Path]:
    """All that may be read of a trace, whichever form it has."""
    return [trace, *(trace if trace.is_dir() else folder_of(trace)).glob(PART_FILES)]


def check_output(path: Path, force: bool, inputs: Iterable[Path] = ()) -> None:
    """Raise what would keep ``write_aside`` from writing the file ``path``, or destroy one of ``inputs``."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: its folder does not exist; make it, or give another path")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give a file name")
    refuse_inputs(path, inputs)
    if os.path.lexists(path) and not force:
        raise RefusedOverwrite(f"{path} exists already: give another path, or --force (force=True) to replace it")
    try:  # permissions do not tell: root has all of them, also where a file system takes no files
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise _not_written(path, error) from None


def check_trace(path: Path, force: bool, inputs: Iterable[Path] = ()) -> None:
    """The same for a trace, which may become the file ``path`` or the folder ``folder_of(path)``."""
    check_output(path, force, inputs)
    folder = folder_of(path)
    if not os.path.lexists(folder):
        return
    if not force:
        raise RefusedOverwrite(f"{folder} exists already: give another path, or --force (force=True) to replace it")
    if not folder.is_dir() or {*folder.iterdir()} - {*folder.glob(PART_FILES)}:
        raise RefusedOverwrite(f"{folder} holds more than a trace: remove it yourself, or give another path")


def write_aside(output: Path, force: bool, fill: Callable[[Path], object]) -> None:
    """Have ``fill`` make a file or a folder beside ``output``, then give it its name."""
    part = output.with_name(output.name + ".part")
    if force:
        _remove(part)
    try:
        fill(part)
        fsync(part)
        _rename(part, output, force)
        fsync(output.parent)
    except FileExistsError as error:
        if isinstance(error, RefusedOverwrite):
            raise
        raise RefusedOverwrite(
            f"{part} exists already: another command is writing it, or one was killed; then remove it or give force"
        ) from None
    except BaseException as error:
        _remove(part)
        if isinstance(error, OSError) and (error.errno in FULL or error.filename == str(part)):
            raise _not_written(output, error) from error
        raise


def write_content_aside(output: Path, force: bool, content: bytes) -> None:
    """``write_aside`` for a file that is in memory."""

    def create(part: Path) -> None:
        with part.open("xb") as file:
            file.write(content)

    write_aside(output, force, create)


def write_trace_aside(output: Path, force: bool, in_parts: bool, fill: Callable[[Path], object]) -> Path:
    """``write_aside`` for a trace; the path it was written to. With ``force`` the other form of it goes away."""
    check_trace(output, force)
    target, other = (folder_of(output), output) if in_parts else (output, folder_of(output))
    write_aside(target, force, fill)
    if force:
        _remove(other)
    return target


def _rename(part: Path, output: Path, force: bool) -> None:
    """Give the file its name, without replacing one that appeared meanwhile unless ``force``."""
    if part.is_dir():
        _rename_folder(part, output, force)
        return
    if force:
        os.replace(part, output)
        return
    try:
        os.link(part, output)
    except FileExistsError:
        part.unlink()
        raise _refusal(output) from None
    except OSError:  # no hard links on this file system
        check_output(output, force)
        os.rename(part, output)
    else:
        part.unlink()


def _rename_folder(part: Path, output: Path, force: bool) -> None:
    """A folder cannot replace one that is not empty: the old one makes room first."""
    old = output.with_name(output.name + ".old")
    if os.path.lexists(output):
        if not force:
            _remove(part)
            raise _refusal(output)
        os.rename(output, old)
    os.rename(part, output)
    _remove(old)


def _not_written(path: Path, error: OSError) -> OSError:
    """``error`` in words, of the same class: which file, why, and what to do."""
    room = "make room there or " if error.errno in FULL else ""
    return type(error)(f"cannot write {path}: {error.strerror or error}; {room}give another path")


def _refusal(output: Path) -> RefusedOverwrite:
    return RefusedOverwrite(f"{output} exists already: give another path, or --force (force=True) to replace it")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def on_files(action: Callable[[], None]) -> None:
    """Run what begins a recording; an error of the file system says what to do."""
    try:
        action()
    except OSError as error:
        if error.errno is None:  # in words of ours, such as a refusal to overwrite
            raise
        raise type(error)(f"cannot record a trace: {error}; give another path or spool") from error
