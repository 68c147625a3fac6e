"""Reading of the newest complete checkpoint, verified by all ranks before anything of it is used."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..comm.broadcast import broadcast_bytes
from ..comm.safety.collective_errors import run_collectively
from ..errors import CorruptFile, InvalidArgument
from . import folder
from .folder import Manifest
from .save import CHECKSUM, keeps, over_ranks, places

if TYPE_CHECKING:
    from ..comm.comm import Comm
    from ..reducer.reducer import Reducer
    from ..types import Array
    from .parts import Sections
    from .redistribute import Entries


LISTINGS = 10  # of a folder that another job saves into


class Checkpoint:
    """A verified checkpoint, the same one on every rank.

    Attributes
    ----------
    path : Path
    step : int
        Steps done when it was written.
    common : {section: {name: array or plain value}}
        The state common to all ranks.
    own : like ``common``
        This rank's own; empty if the number of ranks has changed.
    settings : dict
    complete : bool
        The run had ended.
    ranks : int
        Number of ranks of the job that saved.
    notes : list of str
        Messages for the user: newer checkpoints that are damaged, memories that were redistributed.
    """

    def __init__(self, comm: Comm, path: Path, manifest: Manifest, common: Sections,
                 mine: Sections | None) -> None:  # fmt: skip
        self._comm, self._manifest, self._mine = comm, manifest, mine
        self.path, self.common = path, common
        self._files = path.absolute()  # `restore` reads more of them, and the working folder may be another by then
        self.notes: list[str] = []
        self.step, self.settings, self.complete = manifest["step"], manifest["settings"], manifest["complete"]
        self.ranks = len(manifest["parts"])
        self.own = {name[4:]: entries for name, entries in (mine or {}).items() if name.startswith("own:")}

    @property
    def same_ranks(self) -> bool:
        """True if this job has as many ranks as the one that saved."""
        return self.ranks == self._comm.size

    def check_settings(self, **now: object) -> None:
        """Refuse, on every rank, settings other than the saved ones (collective).

        Raises
        ------
        InvalidArgument
            The text names the first setting that differs, with its saved and given value.
        """
        def check() -> None:
            for name, value in folder.plain(now).items():
                if self.settings.get(name) != value:
                    raise InvalidArgument(f"{self.path} was saved with {name}={self.settings.get(name)}, got {value}: "
                                          "resume with the same, or begin anew in another folder")

        run_collectively(self._comm, check)

    def fill(self, section: str, arrays: Mapping[str, Array], own: bool = False) -> None:
        """Copy the saved arrays of a section, common or this rank's own, into ``arrays``, on their device (collective).

        Raises
        ------
        InvalidArgument
            On every rank, which changes nothing: names, shapes or dtypes are not the saved ones, or an array is
            read-only.
        """
        saved = (self.own if own else self.common).get(section, {})

        def check() -> None:
            described = {name: _form(value) for name, value in saved.items() if hasattr(value, "dtype")}
            wanted = {name: _form(value) for name, value in arrays.items()}
            if odd := sorted(name for name in {*described, *wanted} if described.get(name) != wanted.get(name)):
                raise InvalidArgument(f"{self.path} holds {section} {odd[0]} as {described.get(odd[0], 'nothing')}, "
                                      f"this run has {wanted.get(odd[0], 'nothing')}: resume with the model that was "
                                      "saved")
            if fixed := [name for name, array in arrays.items() if _read_only(array)]:
                raise InvalidArgument(f"{section} {fixed[0]} is read-only: give an array that can be written into")

        run_collectively(self._comm, check)
        from ..ops import ops_for

        for name, array in arrays.items():
            array[...] = saved[name] if isinstance(array, np.ndarray) else ops_for(array).from_host(saved[name])

    def restore(self, reducer: Reducer, name: str = "reducer") -> None:
        """Load a reducer's state, redistributed if ranks, workers or nodes have changed (collective).

        With the same ranks, workers and slices of nodes the next step has the bits of a run without interruption.
        Otherwise the sum of all error memories is kept, with a note in ``notes``: see
        :mod:`mpicomp.checkpoint.redistribute`.

        Raises
        ------
        InvalidArgument
            On every rank: there is no such state, or it is of another scheme or cannot be redistributed.
        """
        rows = over_ranks(self._comm, keeps(reducer))
        state = run_collectively(self._comm, lambda: self._state(reducer, name, rows))
        reducer.load_state_dict(state)

    def _state(self, reducer: Reducer, name: str, rows: np.ndarray) -> Entries:
        from .redistribute import Keepers, estimated_anew, redistribute

        if name not in self._manifest["workers"]:
            raise InvalidArgument(f"{self.path} has no state of a reducer {name!r}, "
                                  f"only of {', '.join(self._manifest['workers']) or 'none'}")
        had = Keepers(self._manifest["workers"][name], self._manifest.get("places", {}).get(name, []))
        now = Keepers(rows[:, 0].tolist(), places(rows))
        if had == now and self._mine is not None:
            return self._mine[f"reducer:{name}"]
        old = lru_cache(maxsize=2)(lambda rank: _read_part(self._files, self._manifest, rank)[f"reducer:{name}"])
        if not reducer.scheme.equals(saved := old(0)["scheme"]):
            raise InvalidArgument(f"{self.path} was saved with scheme {saved}, got {reducer.scheme}: "
                                  "resume with the same")
        self.notes.append(f"error memories of {had} were given to {now}; their sum is kept, results agree to rounding "
                          "at best")
        lost = estimated_anew(str(reducer.scheme)) + ["what slices have for themselves"] * (had.slices != now.slices)
        if lost:
            self.notes.append(f"estimated anew for {now}: {', '.join(lost)}")
        return redistribute(old, had, now, self._comm.rank, reducer.place, reducer.kept)


def load(comm: Comm, root: str | os.PathLike[str], step: int | None = None) -> Checkpoint | None:
    """Read the newest complete checkpoint in a folder, or that of ``step`` (collective).

    Returns
    -------
    Checkpoint or None
        None if there is no checkpoint. Its ``notes`` list newer ones that are damaged.

    Raises
    ------
    CorruptFile
        On every rank: the checkpoint of ``step`` is damaged (the text names the newest other), or all are.
    InvalidArgument
        On every rank: there is no checkpoint of ``step``.
    """
    root = Path(root)
    for _ in range(LISTINGS):
        there = _folders(comm, root)
        if step is not None and step not in there:
            raise InvalidArgument(f"no checkpoint of step {step} in {root}; there are: "
                                  f"{', '.join(map(str, there)) or '-'}")
        found, damaged = _newest_whole(comm, there if step is None else {step: there[step]})
        if not damaged or there == _folders(comm, root):  # else another job has renamed or dropped what was listed
            break
    if step is not None and damaged:
        others = [one for one in there if one != step]
        advice = f"take that of step {others[-1]}" if others else "there is no other"
        raise CorruptFile(f"{damaged[step]}; {advice}")
    notes = [f"passed over the checkpoint of step {one}: {error}" for one, error in damaged.items()]
    if found is not None:
        found.notes += notes
    elif notes:
        raise CorruptFile(f"no checkpoint in {root} is whole: {'; '.join(notes)}")
    return found


def load_arrays(path: str | os.PathLike[str]) -> Sections:
    """The state in one file that ``save_arrays`` wrote. Local.

    Raises
    ------
    CorruptFile
        The file is missing, damaged, or of another kind.
    """
    from . import parts

    file = Path(path)
    if not file.is_file():
        raise CorruptFile(f"{file} is missing")
    state = parts.read(file.read_bytes(), file)
    parts.check_crc(file, state.pop(CHECKSUM, {}).get("crc32"), parts.digest(state))
    return state


def _folders(comm: Comm, root: Path) -> dict[int, Path]:
    """The complete checkpoints that rank 0 sees, by step, ascending."""
    seen = run_collectively(comm, lambda: folder.folders_in(root), comm.rank == 0)
    listed = [[step, path.name] for step, path in (seen or {}).items()]
    names = json.loads(broadcast_bytes(comm, json.dumps(listed).encode()).tobytes())
    return {step: root / name for step, name in names}


def _newest_whole(comm: Comm, there: dict[int, Path]) -> tuple[Checkpoint | None, dict[int, str]]:
    """The newest checkpoint that is whole, and the errors of the newer ones by step."""
    damaged: dict[int, str] = {}
    for step, path in reversed(there.items()):
        try:
            return _open(comm, path), damaged
        except (CorruptFile, FileNotFoundError) as error:  # the second of a file that goes while it is read
            damaged[step] = str(error)
    return None, damaged


def _open(comm: Comm, path: Path) -> Checkpoint:
    """Verify every file of a checkpoint, distributed over the ranks, and read the state that this rank needs."""
    from . import parts

    read = run_collectively(comm, lambda: folder.read_manifest(path / folder.MANIFEST), comm.rank == 0)
    manifest: Manifest = json.loads(broadcast_bytes(comm, json.dumps(read).encode()).tobytes())
    run_collectively(comm, lambda: folder.check_manifest(path, manifest))
    file = path / folder.COMMON
    verified = run_collectively(comm, lambda: parts.verified(file, *manifest["common"]), comm.rank == 0)
    data = broadcast_bytes(comm, verified or b"")
    common = run_collectively(comm, lambda: parts.read(data.tobytes(), file))
    mine = run_collectively(comm, lambda: _verify_parts(comm, path, manifest))
    return Checkpoint(comm, path, manifest, common, mine)


def _verify_parts(comm: Comm, path: Path, manifest: Manifest) -> Sections | None:
    """Read this rank's state if the number of ranks is the same; else verify this rank's share of the files."""
    from . import parts

    if len(manifest["parts"]) == comm.size:
        return _read_part(path, manifest, comm.rank)
    for rank in range(comm.rank, len(manifest["parts"]), comm.size):
        parts.verify(path / folder.part_of(rank), *manifest["parts"][rank])
    return None


def _read_part(path: Path, manifest: Manifest, rank: int) -> Sections:
    from . import parts

    file = path / folder.part_of(rank)
    return parts.read(parts.verified(file, *manifest["parts"][rank]), file)


def _read_only(array: Array) -> bool:
    return isinstance(array, np.ndarray) and not array.flags.writeable


def _form(array: Array) -> str:
    if not hasattr(array, "dtype"):
        return type(array).__name__
    return f"{array.dtype}{list(array.shape)}"
