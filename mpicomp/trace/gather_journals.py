"""Journals of all ranks brought to rank 0 at the end of a run, over MPI if the ranks share no disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ..comm.safety.collective_errors import run_collectively
from ..errors import CorruptFile, MpicompError
from . import journal, messages
from .record_buffer import RecordBuffer

if TYPE_CHECKING:
    from ..comm.comm import Comm


class JournalInfo(TypedDict):
    """A rank's journal, as the rank that wrote it knows it."""

    path: str
    size: int
    truncated: bool
    n_dropped: int


def merge_over_ranks(
    comm: Comm, buffer: RecordBuffer, run_id: str, path: Path, force: bool, max_events: int | None = None
) -> None:
    """Merge into ``path`` and remove the journals. Collective; on failure they stay, and every rank raises."""
    own, nbytes = buffer.writer.path, buffer.writer.size
    info = JournalInfo(path=str(own), size=nbytes, truncated=buffer.truncated, n_dropped=buffer.n_dropped)
    everyone = messages.gather_json(comm, info)
    unseen = [rank for rank, info in enumerate(everyone) if rank and not is_visible(info, run_id)]
    unseen = messages.broadcast_json(comm, unseen)
    failure: Exception | None = None
    if comm.rank in unseen:
        messages.send_file(comm, own, nbytes, dest=0)
    elif comm.rank == 0:
        failure = _merge_here(comm, own.parent, everyone, unseen, path, force, max_events)
    comm.fail_together(failure)
    own.unlink(missing_ok=True)


def recover_over_ranks(comm: Comm, folder: Path, path: Path, force: bool) -> None:
    """Make the file from the journals in a folder that rank 0 sees, and remove them. Collective."""
    from . import merge_journals

    def recover() -> None:
        merge_journals.recover(folder, path, force=force)
        for own in folder.glob("*" + journal.SUFFIX):
            own.unlink()
        folder.rmdir()

    comm.Barrier()  # all have stopped writing
    run_collectively(comm, recover, comm.rank == 0)


def is_visible(info: JournalInfo, run_id: str) -> bool:
    """Return True if this process reads the same file that the rank wrote, complete.

    On another host a file of the same name may be an earlier run's, or a network file system may show an old size.
    """
    try:
        with open(info["path"], "rb") as file:
            return os.fstat(file.fileno()).st_size == info["size"] and run_id.encode() in file.read(4096)
    except OSError:
        return False


def _merge_here(
    comm: Comm, folder: Path, everyone: list[JournalInfo], unseen: list[int], path: Path, force: bool,
    max_events: int | None,
) -> Exception | None:  # fmt: skip
    from . import merge_journals

    fetched = {rank: folder / f"rank{rank:05d}.fetched" for rank in unseen}
    failure: Exception | None = None
    for rank, copy in fetched.items():  # also after a failure: the senders block until they are received
        failure = messages.receive_file(comm, copy, everyone[rank]["size"], source=rank) or failure
    try:
        if failure:
            raise failure
        journals = [journal.Journal(fetched.get(rank, info["path"])) for rank, info in enumerate(everyone)]
        _note_losses(journals, everyone)
        merge_journals.merge(journals, path, force=force, max_events=max_events or merge_journals.MAX_EVENTS)
    except MpicompError as error:
        return error
    except Exception as error:  # HDF5 raises many kinds; every one of them must reach all ranks
        complete = isinstance(error, OSError) and error.errno is None  # raised by this package
        text = str(error) if complete else f"cannot write {path}: {error}"
        return OSError(f"{text}; the journals are kept: mpicomp trace recover {folder} -o FILE")
    finally:
        for copy in fetched.values():
            copy.unlink(missing_ok=True)
    return None


def _note_losses(journals: list[journal.Journal], everyone: list[JournalInfo]) -> None:
    """Mark truncated journals: a disk too full for the events may have been too full for the last frame."""
    for rank, (own, info) in enumerate(zip(journals, everyone, strict=True)):
        if own.rank != rank:
            raise CorruptFile(f"{own.path}: expected the journal of rank {rank}, got that of rank {own.rank}")
        if info["truncated"]:
            own.done = {"reason": "truncated", "n_dropped": info["n_dropped"]}
