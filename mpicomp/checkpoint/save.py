"""Writing of a checkpoint: a file from every rank; the common state and the manifest from rank 0."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .._util.atomic_files import write_output
from .._version import __version__
from ..comm.broadcast import broadcast_bytes
from ..comm.safety.collective_errors import check_communicator, run_collectively
from ..errors import InvalidArgument
from . import folder

if TYPE_CHECKING:
    from ..comm.comm import Comm
    from ..reducer.reducer import Reducer
    from .parts import State

CHECKSUM = "checksum"  # section of a single file with the checksum of the others


def save(comm: Comm, root: str | os.PathLike[str], step: int, *, common: State, own: State | None = None,
         reducers: Mapping[str, Reducer] | None = None, settings: Mapping[str, object] | None = None, keep: int = 2,
         complete: bool = False) -> Path:
    """Write the checkpoint of ``step`` (collective).

    Parameters
    ----------
    comm : Comm
    root : path
        Folder of this run's checkpoints, shared by all ranks; made if it does not exist.
    step : int
        Steps done.
    common : {section: {name: array or plain value}}
        State common to all ranks: model, optimizer, data position, random states. Compared between ranks.
    own : like ``common``, optional
        State of this rank only, which can be resumed on the same number of ranks.
    reducers : mapping of name -> Reducer, optional
        Reducers whose error memories and other state are saved.
    settings : mapping of plain values, optional
        Settings that a resumed run must share: see ``Checkpoint.check_settings``.
    keep : int
        Number of the newest checkpoints to keep.
    complete : bool
        The run has ended: nothing is left to resume.

    Returns
    -------
    Path
        The checkpoint's folder.

    Raises
    ------
    Disagreement, InvalidArgument
        On every rank: ``common`` differs between ranks, or it or ``settings`` holds values that cannot be saved.
    MpicompError
        On every rank: it could not be written. Earlier checkpoints are unchanged.
    """
    with _as_one_call(comm, step):
        return _save(comm, Path(root), step, common, own or {}, reducers or {}, settings or {}, keep, complete)


def _save(comm: Comm, root: Path, step: int, common: State, own: State, reducers: Mapping[str, Reducer],
          settings: Mapping[str, object], keep: int, complete: bool) -> Path:
    from . import parts

    _agree(comm, root, step, common, reducers, settings, keep)
    made = run_collectively(comm, lambda: folder.begin(root, step).name, comm.rank == 0)
    part = root / broadcast_bytes(comm, (made or "").encode()).tobytes().decode()

    def mine() -> dict[str, Mapping[str, object]]:
        of_reducers = {f"reducer:{name}": reducer.state_dict() for name, reducer in reducers.items()}
        return {**{f"own:{name}": entries for name, entries in own.items()}, **of_reducers}

    try:
        run_collectively(comm, lambda: folder.check_shared(part))
        written = run_collectively(comm, lambda: parts.write(part / folder.part_of(comm.rank), mine()))
        shared = run_collectively(comm, lambda: parts.write(part / folder.COMMON, common), comm.rank == 0)
        ranks = over_ranks(comm, [*written, *(one for reducer in reducers.values() for one in keeps(reducer))])
        of_reducers = {name: ranks[:, 2 + 3 * i :] for i, name in enumerate(reducers)}
        manifest = folder.Manifest(
            format=folder.FORMAT, version=folder.VERSION, mpicomp=__version__, step=int(step),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), complete=complete,
            settings=folder.plain(settings), common=list(shared or ()), parts=ranks[:, :2].tolist(),
            workers={name: own[:, 0].tolist() for name, own in of_reducers.items()},
            places={name: places(own) for name, own in of_reducers.items()},
        )  # fmt: skip
        run_collectively(comm, lambda: folder.finish(root, step, part, manifest, keep), comm.rank == 0)
    except Exception:
        if comm.rank == 0:
            folder.remove_part(part)
        raise
    return root / folder.name_of(step)


def _agree(comm: Comm, root: Path, step: int, common: State, reducers: Mapping[str, Reducer],
           settings: Mapping[str, object], keep: int) -> None:
    """Raise on every rank, before anything is written, if the ranks do not save the same state."""
    from . import parts

    digest = names = None
    error: Exception | None = None
    try:
        whole = isinstance(step, int | np.integer) and isinstance(keep, int | np.integer)
        if not whole or step < 0 or keep < 1:
            raise InvalidArgument("step must be a whole number of at least 0 and keep one of at least 1, got "
                                  f"{step!r} and {keep!r}")
        if not isinstance(reducers, Mapping):
            raise InvalidArgument(f"reducers must be a dict, got {type(reducers).__name__}: give "
                                  '{"reducer": reducer}')
        folder.plain(settings)
        digest, names = parts.digest(common), list(reducers)
    except Exception as caught:  # of any class: the other ranks wait for the verdict
        error = caught
    comm.agree(f"save step {step} to {root}, common state {digest}, reducers {names}, keep={keep}", error)


def save_arrays(comm: Comm, path: str | os.PathLike[str], state: State) -> None:
    """Write a state of rank 0 into one file, replacing an older one in one step (collective)."""
    from . import parts

    def write() -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        checked = {**state, CHECKSUM: {"crc32": parts.digest(state)}}
        write_output(target, True, lambda part: parts.write(part, checked))

    run_collectively(comm, write, comm.rank == 0)


def steps(root: str | os.PathLike[str]) -> list[int]:
    """Steps of the complete checkpoints in a folder, ascending. Local."""
    return folder.steps_in(Path(root))


def common_result(reducer: Reducer) -> bool:
    """True if a reducer gives all ranks the same result, and so the same model: not with error reset and local SGD."""
    return not reducer.scheme.diverges


def keeps(reducer: Reducer) -> list[int]:
    """The workers of this rank, the node and the slice that it keeps; -1 for whole vectors."""
    return [reducer.workers, reducer.place.get("node", -1), reducer.place.get("slice", -1)]


def places(rows: np.ndarray) -> list[list[int]]:
    """Node and slice of every rank, from what each `keeps`; empty for whole vectors."""
    pairs: list[list[int]] = rows[:, 1:3].tolist()
    return pairs if pairs[0][0] >= 0 else []


def over_ranks(comm: Comm, values: list[int]) -> np.ndarray:
    """Integers of every rank, a row per rank."""
    flat, _ = comm.gather_to_all(np.array(values, np.int64), [len(values)] * comm.size)
    return flat.reshape(comm.size, len(values))


@contextmanager
def _as_one_call(comm: Comm, step: int) -> Iterator[None]:
    """Record one call in the log of calls, if there is one, for the watchdog and fault injection."""
    check_communicator(comm)
    log = comm.log
    if log is None:
        yield
        return
    try:
        log.begin("checkpoint", step)
        yield
    finally:
        log.end()
