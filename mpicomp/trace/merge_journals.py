"""Merging of journals into one HDF5 file, after a run or after its death."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from .._util.progress import Progress, part_of, silent
from ..errors import CorruptFile, InvalidArgument
from . import journal, write
from .files import Source, check_trace, write_trace
from .journal import Journal
from .tables import Result


class Merged(NamedTuple):
    """The trace written, and the state of the journals it was made from."""

    path: Path
    complete: bool
    n_ranks: int
    n_events: int
    n_dropped: int
    status: dict[int, str]  # of the ranks that did not close
    damage: dict[str, str]  # of the journals that could not be read to their end


MAX_EVENTS = 200_000_000  # per file, some 5 GB; a larger trace is a folder of files


def recover(spool: Source | Sequence[Source], output: Source, *, force: bool = False,
            max_events: int = MAX_EVENTS, progress: Progress = silent) -> Merged:
    """Build the trace from the journals that a killed run left behind. The journals are kept.

    Parameters
    ----------
    spool : path, or list of paths
        Folders with journals (one per node if the spool was on local disks), or journals.
    output : path
        The HDF5 file to write; it must not exist, unless ``force`` is given.
    max_events : int
        A run with more events becomes the folder ``OUTPUT.d`` of files that hold at most that many (or one rank).
    progress : callable
        Gets the current action and the share done, from 0 to 1.
    """
    folders = [spool] if isinstance(spool, (str, os.PathLike)) else spool
    found = _find(folders)
    check_trace(Path(output).absolute(), force, found)
    journals, unreadable = _read_all(found, part_of(progress, 0.0, 0.2))
    return merge(journals, Path(output).absolute(), force=force, max_events=max_events, unreadable=unreadable,
                 progress=part_of(progress, 0.2, 1.0))


def merge(
    journals: list[Journal], output: Path, *, force: bool, max_events: int = MAX_EVENTS,
    unreadable: dict[str, str] | None = None, progress: Progress = silent,
) -> Merged:  # fmt: skip
    """Write ``output`` from journals, in one step."""
    run = _one_run(journals)
    by_rank = _by_rank(journals, run["n_ranks"])
    status = [own.status if own else "missing" for own in by_rank]
    parts = split([own.n_events if own else 0 for own in by_rank], max_events)
    whole = write.Run(run, by_rank, status, parts, progress)
    path = write_trace(output, force, len(parts) > 1, whole.write)
    return Merged(
        path=path,
        complete=all(state == "closed" for state in status),
        n_ranks=len(by_rank),
        n_events=sum(own.n_events for own in journals),
        n_dropped=sum(own.n_dropped for own in journals),
        status={rank: state for rank, state in enumerate(status) if state != "closed"},
        damage={**{str(own.path): own.damage for own in journals if own.damage}, **(unreadable or {})},
    )


def split(n_events: list[int], max_events: int) -> list[range]:
    """Consecutive ranks for each file: as many as have ``max_events`` events together, at least one."""
    if max_events < 1:
        raise InvalidArgument(f"max_events must be at least 1, got {max_events}")
    parts, begin, filled = [], 0, 0
    for rank, events in enumerate(n_events):
        if rank > begin and filled + events > max_events:
            parts.append(range(begin, rank))
            begin, filled = rank, 0
        filled += events
    return [*parts, range(begin, len(n_events))]


def _by_rank(journals: list[Journal], n_ranks: int) -> list[Journal | None]:
    by_rank: list[Journal | None] = [None] * n_ranks
    for own in journals:
        if not 0 <= own.rank < n_ranks:
            raise CorruptFile(f"{own.path} claims to be of rank {own.rank} of {n_ranks}")
        other = by_rank[own.rank]
        if other is not None:
            raise CorruptFile(f"two journals of rank {own.rank}: {other.path} and {own.path}")
        by_rank[own.rank] = own
    return by_rank


def _find(folders: Iterable[Source]) -> list[Path]:
    found: list[Path] = []
    for folder in map(Path, folders):
        if not folder.exists():
            raise FileNotFoundError(f"{folder} does not exist: give the spool folder of the run (NAME.h5.spool)")
        found += sorted(folder.glob("*" + journal.SUFFIX)) if folder.is_dir() else [folder]
    if not found:
        raise FileNotFoundError(f"no journal (*{journal.SUFFIX}) in {', '.join(map(str, folders))}")
    return found


def _read_all(paths: list[Path], progress: Progress) -> tuple[list[Journal], dict[str, str]]:
    journals, unreadable = [], {}
    for place, path in enumerate(paths):
        progress(f"reading {path.name}", place / len(paths))
        try:
            journals.append(Journal(path))
        except CorruptFile as error:
            unreadable[str(path)] = str(error)
    if not journals:
        raise CorruptFile("no journal can be read: " + "; ".join(unreadable.values()))
    return journals, unreadable


def _one_run(journals: list[Journal]) -> Result:
    runs: dict[str, list[str]] = {}
    for own in journals:
        runs.setdefault(own.run_id, []).append(own.path.name)
    if len(runs) > 1:
        several = "; ".join(f"run {run_id[:8]}: {', '.join(names)}" for run_id, names in runs.items())
        raise CorruptFile(f"the journals belong to different runs, recover one at a time: {several}")
    return journals[0].head["run"]
