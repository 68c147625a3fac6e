"""Reading a checkpoint: the newest that is whole, verified by all ranks before anything of it is used."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..comm.safety.collective_errors import together
from ..errors import CorruptFile, InvalidArgument
from . import folder
from .save import CHECKSUM

Sections = dict[str, dict[str, Any]]


class Checkpoint:
    """A verified checkpoint, the same one on every rank.

    Attributes
    ----------
    path : Path
    step : int
        Steps done when it was written.
    common : {section: {name: array or plain value}}
        What was saved as common to all ranks.
    own : like ``common``
        This rank's own; empty where another number of ranks reads.
    settings : dict
    complete : bool
        The run that wrote it was over.
    ranks : int
        Of the job that wrote it.
    notes : list of str
        What the user should hear: newer checkpoints that are damaged, memories that were redistributed.
    """

    def __init__(self, comm: Any, path: Path, facts: dict[str, Any], common: Sections, mine: Sections | None) -> None:
        self._comm, self._facts, self._mine = comm, facts, mine
        self.path, self.common = path, common
        self.notes: list[str] = []
        self.step, self.settings, self.complete = facts["step"], facts["settings"], facts["complete"]
        self.ranks = len(facts["parts"])
        self.own = {name[4:]: entries for name, entries in (mine or {}).items() if name.startswith("own:")}

    @property
    def same_ranks(self) -> bool:
        """Whether this job has as many ranks as the one that saved."""
        return self.ranks == self._comm.size

    def check_settings(self, **now: Any) -> None:
        """Refuse, on every rank, to go on with settings other than the saved ones (collective).

        Raises
        ------
        InvalidArgument
            Naming the first setting that differs, what was saved and what was given.
        """
        error = None
        for name, value in json.loads(json.dumps(now)).items():
            if self.settings.get(name) != value and error is None:
                error = InvalidArgument(f"{self.path} was saved with {name}={self.settings.get(name)}, got {value}: "
                                        "resume with the same, or begin anew in another folder")
        self._comm.fail_together(error)

    def fill(self, section: str, arrays: Mapping[str, Any], own: bool = False) -> None:
        """Copy the saved arrays of a section, common or this rank's own, into ``arrays``, on their device (collective).

        Raises
        ------
        InvalidArgument
            On every rank: names, shapes or dtypes are not the saved ones. Nothing is changed then.
        """
        saved, error = (self.own if own else self.common).get(section, {}), None
        described = {name: _form(value) for name, value in saved.items() if hasattr(value, "dtype")}
        wanted = {name: _form(value) for name, value in arrays.items()}
        if described != wanted:
            odd = sorted(name for name in {*described, *wanted} if described.get(name) != wanted.get(name))[0]
            error = InvalidArgument(f"{self.path} holds {section} {odd} as {described.get(odd, 'nothing')}, "
                                    f"this run has {wanted.get(odd, 'nothing')}: resume with the model that was saved")
        self._comm.fail_together(error)
        for name, array in arrays.items():
            array[...] = saved[name] if isinstance(array, np.ndarray) else _ops(array).from_host(saved[name])

    def restore(self, reducer: Any, name: str = "reducer") -> None:
        """Load a reducer's state: this rank's, or what redistribution makes of all ranks' (collective).

        On as many ranks with as many workers the next step has the bits of the run that was not interrupted. Else the
        sum of all error memories is kept, and ``notes`` says so: see :mod:`mpicomp.checkpoint.redistribute`.

        Raises
        ------
        InvalidArgument
            On every rank: there is no such state, or it is of another scheme or cannot be redistributed.
        """
        had, now = self._facts["workers"].get(name), self._comm.lengths_of_all(reducer.workers)
        state = together(self._comm, lambda: self._state(reducer, name, had, now))
        reducer.load_state_dict(state)

    def _state(self, reducer: Any, name: str, had: list[int] | None, now: list[int]) -> dict[str, Any]:
        if had is None:
            raise InvalidArgument(f"{self.path} has no state of a reducer {name!r}, "
                                  f"only of {', '.join(self._facts['workers']) or 'none'}")
        if had == now and self._mine is not None:  # as many ranks: this rank's part was read
            return self._mine[f"reducer:{name}"]
        from .redistribute import redistribute

        old = lru_cache(maxsize=2)(lambda rank: self._part(rank)[f"reducer:{name}"])
        _check_scheme(self.path, old(0)["scheme"], reducer.scheme)
        self._say_redistributed(had, now, reducer)
        return redistribute(old, had, now, self._comm.rank)

    def _say_redistributed(self, had: list[int], now: list[int], reducer: Any) -> None:
        from .redistribute import estimated_anew

        self.notes.append(f"error memories of {sum(had)} workers on {len(had)} ranks were given to {sum(now)} workers "
                          f"on {len(now)} ranks; their sum is kept, results agree to rounding at best")
        if lost := estimated_anew(str(reducer.scheme)):
            self.notes.append(f"estimated anew for {len(now)} ranks: {', '.join(lost)}")

    def _part(self, rank: int) -> Sections:
        return _read_part(self.path, self._facts, rank)


def load(comm: Any, root: str | os.PathLike[str], step: int | None = None) -> Checkpoint | None:
    """The newest whole checkpoint in a folder, or that of ``step`` (collective).

    Returns
    -------
    None where there is no checkpoint at all. Damaged ones that were passed over stand in ``notes``.

    Raises
    ------
    CorruptFile
        On every rank: that of ``step`` is damaged (the text names the newest other), or all are.
    InvalidArgument
        On every rank: there is no checkpoint of ``step``.
    """
    root = Path(root)
    there = _folders(comm, root)
    if step is not None:
        return _exactly(comm, root, step, there)
    notes: list[str] = []
    for candidate, path in reversed(there.items()):
        try:
            checkpoint = _open(comm, path)
        except CorruptFile as error:
            notes.append(f"passed over the checkpoint of step {candidate}: {error}")
            continue
        checkpoint.notes += notes
        return checkpoint
    if notes:
        raise CorruptFile(f"no checkpoint in {root} is whole: {'; '.join(notes)}")
    return None


def load_arrays(path: str | os.PathLike[str]) -> Sections:
    """The state in one file that ``save_arrays`` wrote. Local.

    Raises
    ------
    CorruptFile
        It is no such file, or damaged.
    """
    from . import parts

    file = Path(path)
    if not file.is_file():
        raise CorruptFile(f"{file} is missing")
    state = parts.read(file.read_bytes(), file)
    if state.pop(CHECKSUM, {}).get("crc32") != parts.digest(state):
        raise CorruptFile(f"{file} is damaged: its checksum is not the one it was written with")
    return state


def _folders(comm: Any, root: Path) -> dict[int, Path]:
    """The complete checkpoints that rank 0 sees, by step, ascending."""
    seen = together(comm, lambda: folder.folders_in(root), comm.rank == 0)
    names = json.loads(_tell(comm, json.dumps([[step, path.name] for step, path in (seen or {}).items()])))
    return {step: root / name for step, name in names}


def _exactly(comm: Any, root: Path, step: int, there: dict[int, Path]) -> Checkpoint:
    if step not in there:
        raise InvalidArgument(f"no checkpoint of step {step} in {root}; there are: {', '.join(map(str, there)) or '-'}")
    try:
        return _open(comm, there[step])
    except CorruptFile as error:
        others = [one for one in there if one != step]
        advice = f"take that of step {others[-1]}" if others else "there is no other"
        raise CorruptFile(f"{error}; {advice}") from None


def _open(comm: Any, path: Path) -> Checkpoint:
    """Verify every file of a checkpoint, the work spread over the ranks, and read what this rank needs."""
    read = together(comm, lambda: folder.read_manifest(path / folder.MANIFEST), comm.rank == 0)
    facts = json.loads(_tell(comm, json.dumps(read)))
    data = together(comm, lambda: _read_common(path, facts), comm.rank == 0)
    told = _tell(comm, data or b"")
    common = together(comm, lambda: _common_of(told, path))
    mine = together(comm, lambda: _verify_parts(comm, path, facts))
    return Checkpoint(comm, path, facts, common, mine)


def _read_common(path: Path, facts: dict[str, Any]) -> bytes:
    from . import parts

    _check_facts(path, facts)
    return parts.verified(path / folder.COMMON, *facts["common"])


def _common_of(data: bytes, path: Path) -> Sections:
    from . import parts

    return parts.read(data, path / folder.COMMON)


def _verify_parts(comm: Any, path: Path, facts: dict[str, Any]) -> Sections | None:
    """This rank's state where the number of ranks is the same; else nothing, but every file has been looked at."""
    from . import parts

    if len(facts["parts"]) == comm.size:
        return _read_part(path, facts, comm.rank)
    for rank in range(comm.rank, len(facts["parts"]), comm.size):
        parts.verify(path / folder.part_of(rank), *facts["parts"][rank])
    return None


def _read_part(path: Path, facts: dict[str, Any], rank: int) -> Sections:
    from . import parts

    file = path / folder.part_of(rank)
    return parts.read(parts.verified(file, *facts["parts"][rank]), file)


def _check_facts(path: Path, facts: dict[str, Any]) -> None:
    """A manifest with a right checksum may still be someone's invention."""
    listed = facts.get("parts")
    pairs = [facts.get("common"), *(listed if isinstance(listed, list) and listed else [None])]
    numbers = all(isinstance(pair, list) and len(pair) == 2 and all(isinstance(n, int) and n >= 0 for n in pair)
                  for pair in pairs)  # fmt: skip
    if not numbers or not {"step", "settings", "complete", "workers"} <= facts.keys():
        raise CorruptFile(f"{path / folder.MANIFEST} lacks what a checkpoint of this version has")


def _check_scheme(path: Path, saved: str, given: Any) -> None:
    if not given.equals(saved):
        raise InvalidArgument(f"{path} was saved with scheme {saved}, got {given}: resume with the same")


def _form(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _ops(array: Any) -> Any:
    from ..ops import ops_for

    return ops_for(array)


def _tell(comm: Any, text: str | bytes) -> Any:
    """What rank 0 has, on every rank."""
    data = np.frombuffer(text.encode() if isinstance(text, str) else text, np.uint8).copy()
    size = comm.lengths_of_all(data.size)[0]
    if comm.rank:
        data = np.empty(size, np.uint8)
    if size:
        comm.broadcast(data, 0)
    return data.tobytes()
