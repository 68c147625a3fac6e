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

    Construction and `write` are collective: every rank raises if the file cannot be written. ``comm`` is None without
    MPI. ``inputs`` are files that the command reads: they are never replaced. `options.OUTPUT` keeps two outputs of a
    command apart.
    """

    def __init__(self, comm: Comm | None, path: str | None, force: bool, inputs: Iterable[Path] = ()) -> None:
        self._comm, self._path, self._force = comm, Path(path) if path else None, force
        if self._path is not None:
            self._on_rank_0(partial(check_output, self._path, force, inputs))

    def write(self, writer: Callable[[Path], object]) -> None:
        """Let ``writer`` write the whole file on rank 0; print results first, since this may fail.

        All ranks wait for it: one that exits with another code than 0 would end the job before the file is whole.
        """
        if self._path is not None:
            self._on_rank_0(partial(write_output, self._path, self._force, writer))

    def _on_rank_0(self, work: Callable[[], None]) -> None:
        if self._comm is None:
            work()
        else:
            run_collectively(self._comm, work, self._comm.rank == 0)
