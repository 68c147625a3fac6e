"""From journals to one HDF5 file, after a run or after its death."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ..errors import CorruptFile, RefusedOverwrite
from . import journal, write
from .journal import Journal
from .recorder import check_output


class Merged(NamedTuple):
    """What a merge found."""

    path: Path
    complete: bool
    n_ranks: int
    n_events: int
    n_dropped: int
    status: dict[int, str]  # of every rank that did not simply close
    damage: dict[str, str]  # of every journal that could not be read to its end


def recover(spool, output, *, force: bool = False) -> Merged:
    """Build the trace from the journals that a killed run left behind. The journals are kept.

    Parameters
    ----------
    spool : path, or list of paths
        Folders with journals (one a node where the spool was on local disks), or journals.
    output : path
        The HDF5 file to write; it must not exist, unless ``force`` is given.
    """
    folders = [spool] if isinstance(spool, (str, os.PathLike)) else spool
    check_output(Path(output).absolute(), force)
    journals, unreadable = _read_all(_find(folders))
    return merge(journals, Path(output).absolute(), force=force, unreadable=unreadable)


def merge(journals: list[Journal], output: Path, *, force: bool, unreadable: dict[str, str] | None = None) -> Merged:
    """Write ``output`` from journals: aside first, then renamed, so that it is whole or absent."""
    run = _one_run(journals)
    by_rank: list[Journal | None] = [None] * run["n_ranks"]
    for own in journals:
        if not 0 <= own.rank < len(by_rank):
            raise CorruptFile(f"{own.path} claims to be of rank {own.rank} of {len(by_rank)}")
        if by_rank[own.rank] is not None:
            raise CorruptFile(f"two journals of rank {own.rank}: {by_rank[own.rank].path} and {own.path}")
        by_rank[own.rank] = own
    status = [own.status if own else "missing" for own in by_rank]
    _write_aside(output, force, lambda part: write.write_trace(part, run, by_rank, status))
    return Merged(
        path=output,
        complete=all(state == "closed" for state in status),
        n_ranks=len(by_rank),
        n_events=sum(own.n_events for own in journals),
        n_dropped=sum(own.n_dropped for own in journals),
        status={rank: state for rank, state in enumerate(status) if state != "closed"},
        damage={**{str(own.path): own.damage for own in journals if own.damage}, **(unreadable or {})},
    )


def _find(folders) -> list[Path]:
    found: list[Path] = []
    for folder in map(Path, folders):
        if not folder.exists():
            raise FileNotFoundError(f"{folder} does not exist: give the spool folder of the run (NAME.h5.spool)")
        found += sorted(folder.glob("*" + journal.SUFFIX)) if folder.is_dir() else [folder]
    if not found:
        raise FileNotFoundError(f"no journal (*{journal.SUFFIX}) in {', '.join(map(str, folders))}")
    return found


def _read_all(paths: list[Path]) -> tuple[list[Journal], dict[str, str]]:
    journals, unreadable = [], {}
    for path in paths:
        try:
            journals.append(Journal(path))
        except CorruptFile as error:
            unreadable[str(path)] = str(error)
    if not journals:
        raise CorruptFile("no journal can be read: " + "; ".join(unreadable.values()))
    return journals, unreadable


def _one_run(journals: list[Journal]) -> dict:
    runs: dict[str, list[str]] = {}
    for own in journals:
        runs.setdefault(own.run_id, []).append(own.path.name)
    if len(runs) > 1:
        several = "; ".join(f"run {run_id[:8]}: {', '.join(names)}" for run_id, names in runs.items())
        raise CorruptFile(f"the journals belong to different runs, recover one at a time: {several}")
    return journals[0].head["run"]


def _write_aside(output: Path, force: bool, fill) -> None:
    check_output(output, force)
    part = output.with_name(output.name + ".part")
    if force:
        part.unlink(missing_ok=True)
    try:
        fill(part)
        _fsync(part)
        _rename(part, output, force)
        _fsync(output.parent)
    except FileExistsError as error:
        if isinstance(error, RefusedOverwrite):
            raise
        raise RefusedOverwrite(
            f"{part} exists already: another merge is writing it, or one was killed; then remove it or give force"
        ) from None
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _rename(part: Path, output: Path, force: bool) -> None:
    """Give the file its name, without replacing one that appeared meanwhile unless ``force``."""
    if force:
        os.replace(part, output)
        return
    try:
        os.link(part, output)
    except FileExistsError:
        part.unlink()
        raise RefusedOverwrite(f"{output} exists already: give another path, or force to replace it") from None
    except OSError:  # no hard links on this file system
        check_output(output, force)
        os.rename(part, output)
    else:
        part.unlink()


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
