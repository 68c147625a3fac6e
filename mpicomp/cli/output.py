"""The output file of a command: tried before the work, so that hours of it are not lost to a missing folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from .._util.atomic_files import refuse_inputs
from ..comm.safety.collective_errors import together
from ..errors import MpicompError, RefusedOverwrite


class OutputFile:
    """``path``, written by rank 0 aside and renamed when complete; nothing at all if ``path`` is None.

    Entering is collective: every rank learns that the file cannot be written. ``comm`` is None without MPI. ``inputs``
    are files that the command reads, where it reads any: they are not replaced, ``force`` or not.
    """

    def __init__(self, comm: Any, path: str | None, force: bool, inputs: Iterable[Path] = ()) -> None:
        self._writes = comm is None or comm.rank == 0
        self._comm, self._path, self._force = comm, Path(path) if path else None, force
        self._inputs = inputs

    def __enter__(self) -> OutputFile:
        if self._path is None:
            return self
        if self._comm is None:
            _try(self._path, self._force, self._inputs)
        else:
            together(self._comm, partial(_try, self._path, self._force, self._inputs), self._writes)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._path is not None and self._writes:
            with suppress(OSError):
                _part(self._path).unlink(missing_ok=True)

    def write(self, writer: Callable[[Path], object]) -> None:
        """Let ``writer`` write the whole file, aside, and put it in its place (rank 0)."""
        if self._path is None:
            return
        part = _part(self._path)
        writer(part)
        if self._force:
            os.replace(part, self._path)
            return
        try:
            os.link(part, self._path)  # unlike a rename it never replaces a file that came up meanwhile
        except FileExistsError:
            raise _exists(self._path) from None
        except OSError:  # a file system without hard links
            os.replace(part, self._path)


def _part(path: Path) -> Path:
    """Where the file is written until it is whole."""
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def _try(path: Path, force: bool, inputs: Iterable[Path]) -> None:
    """Raise where the file could not be written; leaves nothing behind, as the work may end by a signal."""
    if path.is_dir():
        raise RefusedOverwrite(f"{path} is a folder: give a file name")
    refuse_inputs(path, inputs)
    if path.exists() and not force:
        raise _exists(path)
    try:
        _part(path).touch(exist_ok=False)
        _part(path).unlink()
    except OSError as error:
        raise MpicompError(f"cannot write {path}: {error.strerror}; choose another place") from None


def _exists(path: Path) -> RefusedOverwrite:
    return RefusedOverwrite(f"{path} exists already: choose another name, or --force to replace it")
