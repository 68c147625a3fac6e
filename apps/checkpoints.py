"""The checkpoints of a running app: what it resumes from, when it saves, and whether it has been asked to stop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mpicomp import checkpoint
from mpicomp._util.plurals import count
from mpicomp.comm.safety.collective_errors import run_collectively
from mpicomp.errors import InvalidArgument, MpicompError, RefusedOverwrite

BEST = "best.h5"

Sections = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Snapshot:
    """All of a run's state on this rank; see ``mpicomp.checkpoint.save``."""

    common: Sections
    own: Sections = field(default_factory=dict)
    reducers: Mapping[str, Any] = field(default_factory=dict)


class Run(Protocol):
    """The interface of an app's run that can be saved."""

    steps: int  # done

    @property
    def fixed(self) -> Mapping[str, Any]:
        """The settings that a resumed run must share with this one."""

    def snapshot(self) -> Snapshot: ...


class Keeper:
    """Creating it is collective, and so are its methods; without a folder they do nothing.

    Parameters
    ----------
    comm : Comm
    folder : path, optional
        Where the checkpoints of this run go.
    every : int, optional
        Save after every so many steps; when asked to stop and at the end in any case.
    resume : bool
        Go on from the newest whole checkpoint in ``folder``; start from the beginning if there is none.
    keep : int
        So many of the newest stay.
    asked : callable
        Whether this rank has been asked to stop; one is enough.
    say : callable
        Gets what the user should hear, on every rank.
    count : callable
        Gets the number of steps done, after each step but the last.

    Attributes
    ----------
    saved : Checkpoint or None
        What the app is to restore itself from.
    stopped : bool
        The run was asked to stop, has been saved, and is not over.
    path : Path or None
        The newest checkpoint this run wrote.

    Raises
    ------
    RefusedOverwrite
        On every rank: the folder holds checkpoints or a ``best.h5``, and ``resume`` was not asked for.
    MpicompError
        On every rank: nothing can be written into the folder.
    """

    def __init__(self, comm: Any, folder: str | os.PathLike[str] | None = None, *, every: int | None = None,
                 resume: bool = False, keep: int = 2, asked: Callable[[], bool] = lambda: False,
                 say: Callable[[str], None] = lambda text: None,
                 count: Callable[[int], None] = lambda steps: None) -> None:
        self._comm, self._folder, self._every, self._keep = comm, folder, every, keep
        self._asked, self._say, self._count = asked, say, count
        self.stopped = False
        self.path: Path | None = None
        self.saved: checkpoint.Checkpoint | None = None
        comm.fail_together(_impossible(folder, every, resume))
        if folder is not None:
            self._open(Path(folder), resume)

    def _open(self, folder: Path, resume: bool) -> None:
        run_collectively(self._comm, lambda: _prepare(folder, resume), self._comm.rank == 0)
        self.saved = checkpoint.load(self._comm, folder) if resume else None
        if self.saved is None and resume:
            self._say(f"no checkpoint in {folder} yet: beginning")

    def resumed(self) -> None:
        """The app has restored itself: say from where, and what was out of the ordinary."""
        assert self.saved is not None, "there is something to resume from"
        for note in self.saved.notes:
            self._say(note)
        self._say(f"resumed after step {self.saved.step} from {self.saved.path}")

    def workers(self, given: int | None) -> int | None:
        """The number of virtual workers: that of the run to resume, where the user gave none."""
        return self.saved.settings.get("workers") if given is None and self.saved else given

    def after_step(self, run: Run) -> bool:
        """Save if it is time; whether the run is to stop."""
        self._count(run.steps)
        if self._folder is None:
            return False
        flag = np.array([self._asked()], np.int64)
        self._comm.allreduce_in_place(flag, "native", "max")
        self.stopped = bool(flag[0])
        if self.stopped or (self._every and run.steps % self._every == 0):
            self._save(self._folder, run, complete=False)
        return self.stopped

    def end(self, run: Run) -> None:
        """Mark the last checkpoint as that of a finished run."""
        if self._folder is not None and not (self.saved and self.saved.complete and self.saved.step == run.steps):
            self._save(self._folder, run, complete=True)

    def best(self, step: int, parameters: Mapping[str, Any]) -> None:
        """Keep the model that is the best so far, in ``best.h5``: rank 0's."""
        if self._folder is not None:
            state = {"model": parameters, "about": {"step": step}}
            with self._may_fail(BEST):
                checkpoint.save_arrays(self._comm, Path(self._folder) / BEST, state)

    def _save(self, folder: str | os.PathLike[str], run: Run, complete: bool) -> None:
        now = run.snapshot()
        with self._may_fail("checkpoint", last=self.stopped or complete):
            self.path = checkpoint.save(
                self._comm, folder, run.steps, common=now.common, own=now.own, reducers=now.reducers,
                settings=run.fixed, keep=self._keep, complete=complete,
            )  # fmt: skip

    @contextmanager
    def _may_fail(self, what: str, last: bool = False) -> Iterator[None]:
        """Within the block, a disk that is full is a warning, unless it is to hold the run's ``last`` state."""
        try:
            yield
        except (MpicompError, OSError) as error:
            full = type(error) is MpicompError or isinstance(error, OSError)  # the others are of wrong arguments
            if last or not full:
                raise
            self._say(f"warning: {error}; training goes on without this {what}")


def _impossible(folder: Any, every: int | None, resume: bool) -> InvalidArgument | None:
    if folder is None and (every is not None or resume):
        return InvalidArgument("--resume and --checkpoint-every need a folder of checkpoints: give --checkpoint DIR")
    if folder is not None and not os.fspath(folder):
        return InvalidArgument("--checkpoint must be a folder, got an empty name")
    if every is not None and every < 1:
        return InvalidArgument(f"checkpoint_every must be at least 1, got {every}")
    return None


def check_ranks(comm: Any, saved: Any, reducer: Any) -> None:
    """Refuse, on every rank, to resume models that differ between ranks on another number of ranks (collective)."""
    comm.fail_together(None if checkpoint.common_result(reducer) or saved.same_ranks else InvalidArgument(
        f"with {saved.settings['scheme']} each rank has a model of its own: resume on {count(saved.ranks, 'rank')}"
    ))  # fmt: skip


def check_length(saved: Any, steps: int, steps_per_epoch: int, epochs: float) -> None:
    """Refuse to resume a run that has no step left of ``steps``, unless it is the one that ended there.

    It would count as complete without its last evaluation.
    """
    if saved.step > steps or (saved.step == steps and not saved.complete):
        done = saved.step / steps_per_epoch
        raise InvalidArgument(f"epochs must go beyond what the run to resume has done, {done:g}, got {epochs:g}: give "
                              "more, or another folder without resume")


def _prepare(folder: Path, resume: bool) -> None:
    """Refuse, before the training and not at its end, a folder that no checkpoints can go into; it is made."""
    there = [] if resume else checkpoint.steps(folder)
    if there:
        raise RefusedOverwrite(
            f"{folder} holds checkpoints up to step {there[-1]}: --resume to go on from them, or choose another folder"
        )
    best = folder / BEST
    if not resume and os.path.lexists(best):  # the first evaluation would replace it
        raise RefusedOverwrite(f"{best} exists already: --resume to replace it, or choose another folder")
    checkpoint.check_folder(folder)
