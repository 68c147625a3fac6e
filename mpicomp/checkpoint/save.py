"""Writing a checkpoint: every rank its own file, rank 0 what is common and the manifest."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .._util.atomic_files import replace
from .._version import __version__
from ..comm.safety.collective_errors import together
from ..errors import InvalidArgument, MpicompError
from . import folder

CHECKSUM = "checksum"  # the section of a single file that verifies the others

State = Mapping[str, Mapping[str, Any]]


def save(comm: Any, root: str | os.PathLike[str], step: int, *, common: State, own: State | None = None,
         reducers: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None, keep: int = 2,
         complete: bool = False) -> Path:
    """Write the checkpoint of ``step`` (collective).

    Parameters
    ----------
    comm : Comm
    root : path
        The folder of this run's checkpoints, which all ranks see; made if it does not exist.
    step : int
        Steps done.
    common : {section: {name: array or plain value}}
        What is the same on all ranks: model, optimizer, data position, random states. Compared between ranks.
    own : like ``common``, optional
        What only this rank has. It can be resumed on the same number of ranks only.
    reducers : mapping of name -> Reducer, optional
        Their error memories and all else they keep.
    settings : mapping of plain values, optional
        What a run that resumes must have in common: see ``Checkpoint.check_settings``.
    keep : int
        So many of the newest checkpoints stay.
    complete : bool
        The run is over: nothing is left to resume.

    Returns
    -------
    The checkpoint's folder.

    Raises
    ------
    Disagreement, InvalidArgument
        On every rank: ``common`` differs between ranks, or holds what cannot be saved.
    MpicompError
        On every rank: it could not be written. Checkpoints that were there are as they were.
    """
    with _as_one_call(comm, step):
        return _save(comm, Path(root), step, common, own or {}, reducers or {}, dict(settings or {}), keep, complete)


def _save(comm: Any, root: Path, step: int, common: State, own: State, reducers: Mapping[str, Any],
          settings: dict[str, Any], keep: int, complete: bool) -> Path:
    from . import parts

    _agree(comm, root, step, common, reducers, keep)
    together(comm, lambda: folder.begin(root, step), comm.rank == 0)
    part = root / f"{folder.name_of(step)}.part"
    try:
        comm.fail_together(folder.shared_by_all(part))
        mine = {f"own:{name}": entries for name, entries in own.items()}
        mine |= {f"reducer:{name}": reducer.state_dict() for name, reducer in reducers.items()}
        written = together(comm, lambda: parts.write(part / folder.part_of(comm.rank), mine))
        shared = together(comm, lambda: parts.write(part / folder.COMMON, common), comm.rank == 0)
        ranks = _over_ranks(comm, [*written, *(reducer.workers for reducer in reducers.values())])
        if shared is not None:  # on rank 0
            facts = {
                "format": folder.FORMAT, "version": folder.VERSION, "mpicomp": __version__, "step": step,
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "complete": complete,
                "settings": settings, "common": list(shared), "parts": ranks[:, :2].tolist(),
                "workers": {name: ranks[:, 2 + i].tolist() for i, name in enumerate(reducers)},
            }  # fmt: skip
        together(comm, lambda: folder.finish(root, step, facts, keep), comm.rank == 0)
    except MpicompError:
        if comm.rank == 0:
            folder.remove_part(root, step)
        raise
    return root / folder.name_of(step)


def _agree(comm: Any, root: Path, step: int, common: State, reducers: Mapping[str, Any], keep: int) -> None:
    """Refuse, before anything is written, ranks that do not save the same."""
    from . import parts

    digest = None
    error: Exception | None = None
    try:
        if step < 0 or keep < 1:
            raise InvalidArgument(f"step must be at least 0 and keep at least 1, got {step} and {keep}")
        digest = parts.digest(common)
    except Exception as caught:  # whatever it is: the other ranks wait for the verdict
        error = caught
    comm.agree(f"save step {step} to {root}, common state {digest}, reducers {list(reducers)}, keep={keep}", error)


def save_arrays(comm: Any, path: str | os.PathLike[str], state: State) -> None:
    """Write a state of rank 0 into one file, replacing what was there when the new one is whole (collective)."""
    from . import parts

    target = Path(path)
    part = target.with_name(f"{target.name}.part")

    def write() -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        parts.write(part, {**state, CHECKSUM: {"crc32": parts.digest(state)}})
        replace(part, target)

    together(comm, write, comm.rank == 0)


def steps(root: str | os.PathLike[str]) -> list[int]:
    """Steps of the complete checkpoints in a folder, ascending. Local."""
    return folder.steps_in(Path(root))


def common_result(reducer: Any) -> bool:
    """Whether a reducer gives all ranks the same, so that their models are: not with error reset and local SGD."""
    return not reducer.scheme.diverges


def _over_ranks(comm: Any, values: list[int]) -> np.ndarray:
    """A few integers of every rank, one row a rank."""
    flat, _ = comm.gather_to_all(np.array(values, np.int64), [len(values)] * comm.size)
    return flat.reshape(comm.size, len(values))


@contextmanager
def _as_one_call(comm: Any, step: int) -> Iterator[None]:
    """One entry in the log of calls, where there is one; so the watchdog can tell, and faults can be injected."""
    log = comm.log
    if log is None:
        yield
        return
    try:
        log.begin("checkpoint", step)
        yield
    finally:
        log.end()
