"""Output file of a command, checked before the work so that a missing folder does not cost hours of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .._util.atomic_files import check_output, write_output
from ..comm.safety.collective_errors import run_collectively

if TYPE_CHECKING:
    from ..comm.comm import Comm


class OutputFile:
    """``path``, written by rank 0 in one step; nothing at all if ``path`` is None.

    Construction is collective: every rank raises if the file cannot be written. ``comm`` is None without MPI.
    ``inputs`` are files that the command reads: they are never replaced.
    """

    def __init__(self, comm: Comm | None, path: str | None, force: bool, inputs: Iterable[Path] = ()) -> None:
        self._path, self._force = Path(path) if path else None, force
        if self._path is not None and comm is None:
            check_output(self._path, force, inputs)
        elif self._path is not None and comm is not None:
            run_collectively(comm, partial(check_output, self._path, force, inputs), comm.rank == 0)

    def write(self, writer: Callable[[Path], object]) -> None:
        """Let ``writer`` write the whole file (rank 0)."""
        if self._path is not None:
            write_output(self._path, self._force, writer)
