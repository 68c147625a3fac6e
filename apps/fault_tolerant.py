"""Logistic regression that goes on without ranks that died: their workers move to the survivors.

Every step begins with one small all-gather: each rank's share of the statistics, and how much its error memory holds.
So when ranks die, the others know what went with them. A worker's memory moves with it where its rank lives; that of a
dead rank's worker begins anew at zero. States of two steps are kept, since a survivor may be one step ahead.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpicomp import Scheme
from mpicomp.checkpoint.redistribute import estimated_anew
from mpicomp.comm.safety.survivors import Loss
from mpicomp.errors import InvalidArgument, MpicompError
from mpicomp.schemes.exchanges.pieces import UNUSED

from . import logreg
from .checkpoints import Keeper
from .data import Dataset
from .logreg_result import Evaluation, Result
from .settings import Settings, known

# State of a rank's piece of the vector if no other rank has the same piece: that of a first step.
OF_PLACES = {f"exchange/{name}": value for name, value in UNUSED.items()}
STATISTICS = 6  # numbers of a rank that all others know: |memory|^2, four sums over steps, bytes


class Snapshot(NamedTuple):
    """All that a step changes, before it."""

    step: int
    ranks: list[int]  # of COMM_WORLD, by their rank in the communicator of the step
    x: np.ndarray
    sums: np.ndarray  # of this rank: statistics, bytes
    reducer: dict[str, Any]
    everyone: np.ndarray  # shape (ranks, STATISTICS); as of this step's beginning, or the previous one's
    evaluations: tuple[int, int]  # so many of the series, of the targets


def check(comm: Any, data: Dataset, settings: Settings) -> Settings:
    """Refuse settings that `logreg.check` refuses, and schemes that cannot lose ranks (collective)."""
    settings = logreg.check(comm, data, settings, Keeper(comm))
    scheme = Scheme.parse(settings.scheme)
    if scheme.diverges:
        raise InvalidArgument(f"--ft needs a model that is the same on all ranks; with {settings.scheme} each rank "
                              "has its own between two resets")
    if scheme.options["nodes"] == "yes":
        raise InvalidArgument(f"--ft does not work with {settings.scheme}: a rank that dies takes a slice of its "
                              "node's error memory along. Take nodes=no")
    if scheme.parts(1).memories[0].estimates:
        raise InvalidArgument(f"--ft does not work with {settings.scheme}: a rank that dies takes its part of a "
                              "common estimate along. Take memory=residual")
    return settings


class Training:
    """A job of `mpicomp.survivors`, on the whole data set and with settings that `check` has returned."""

    def __init__(self, data: Dataset, settings: Settings, ranks: int, trace: Any,
                 watch: Callable[[Evaluation, int], None] = lambda evaluation, steps: None) -> None:  # fmt: skip
        self.step = 0
        self.losses: list[dict[str, Any]] = []
        self._data, self._settings, self._ranks = data, settings, list(range(ranks))
        self._workers = known(settings.workers)
        self._trace, self._watch = trace, watch
        self._kept: list[Snapshot] = []

    def begin(self, comm: Any, loss: Loss | None) -> None:
        """Make the run of this rank on ``comm``; after a loss, go on where all survivors were."""
        if loss is None or loss.step == 0:
            self._start(comm, loss)
            return
        if self._kept[-1].step < self.step == loss.step:
            self._kept.append(self._snapshot(self._kept[-1].everyone))
        then = next((one for one in self._kept if one.step == loss.step), None)
        if then is None:
            raise MpicompError(f"no state before step {loss.step} is left: restart from a checkpoint")
        self.step, self._kept = then.step, [then]  # if another rank dies before this one has gone on
        self._go_on(comm, loss, then)

    def _start(self, comm: Any, loss: Loss | None) -> None:
        """From the first step on, on every rank."""
        self.step, self._kept = 0, []
        start = time.perf_counter()
        problem = logreg.define(comm, self._data, self._settings)
        self._seconds = {"minimum": time.perf_counter() - start}
        self._make_run(comm, problem)
        self.result = Result(self._settings, logreg.describe(self._data, self._workers, len(self._ranks)), problem,
                             self.run.evaluate().gap + problem.f_star)  # fmt: skip
        self._ranks = loss.alive if loss else self._ranks
        if loss is not None:
            self._record_loss(loss, 0.0)

    def _make_run(self, comm: Any, problem: Any) -> None:
        self.run = logreg.Run(comm, self._data, self._settings, problem, self._trace)
        self.steps = self._settings.epochs * self.run.shards.steps_per_epoch
        self._samples = self.run.shards.samples(self.steps)

    def advance(self) -> None:
        run = self.run
        own = np.array([run.reducer.memory_norm() ** 2, *run.sums, float(run.bytes_sent)])
        everyone = run.comm.gather_to_all(own, [own.size] * run.comm.size)[0].reshape(-1, STATISTICS)
        self._kept = [*self._kept[-1:], self._snapshot(everyone)]
        run.step(next(self._samples))
        logreg.evaluate_if_due(run, self._settings, self.result, self._watch, self.steps)
        self.step = self.result.steps = run.steps

    def finish(self) -> None:
        """Fill in the result's totals of the whole run (collective)."""
        self.result.bytes_sent = self.run.mean_bytes_sent()
        self.result.seconds = {**self._seconds, **self.run.seconds}

    # -- states of steps

    def _snapshot(self, everyone: np.ndarray) -> Snapshot:
        run, result = self.run, self.result
        sums = np.array([*run.sums, float(run.bytes_sent)])
        return Snapshot(self.step, self._ranks, run.x.copy(), sums, run.reducer.state_dict(), everyone.copy(),
                        (len(result.series), len(result.targets)))  # fmt: skip

    def _go_on(self, comm: Any, loss: Loss, then: Snapshot) -> None:
        """Restore the state before a step, with the workers of the dead."""
        me = loss.alive[comm.rank]
        reducer, before = self._with_workers(comm, then, then.ranks.index(me)), self.run
        self._make_run(comm, self.result.problem)
        self._samples = itertools.islice(self._samples, then.step, None)
        self.run.seconds = before.seconds
        run, gone = self.run, [place for place, rank in enumerate(then.ranks) if rank not in loss.alive]
        lost = then.everyone[gone].sum(axis=0)
        sums = then.sums + (lost[1:] if comm.rank == 0 else 0)  # what the dead had sent counts on
        run.x[:], run.steps, run.bytes_sent = then.x, then.step, int(sums[-1])
        run.sums[:] = [*sums[:3], then.sums[3]]
        run.reducer.load_state_dict(reducer)
        del self.result.series[then.evaluations[0]:], self.result.targets[then.evaluations[1]:]
        # From here on nothing fails: until the next step, this is the state that is kept.
        self._ranks = loss.alive
        self._kept = [self._snapshot(np.zeros((comm.size, STATISTICS)))]
        self._record_loss(loss, math.sqrt(lost[0]))

    def _with_workers(self, comm: Any, then: Snapshot, place: int) -> dict[str, Any]:
        """This rank's state with the memories of the workers it is to have (collective)."""
        everyone = np.arange(self._workers)
        had = np.array_split(everyone, len(then.ranks))[place]
        has = np.array_split(everyone, comm.size)[comm.rank]
        anew = {f"exchange/{name}" for name in estimated_anew(then.reducer["scheme"])}  # with this number of ranks
        state = {name: OF_PLACES.get(name, value) for name, value in then.reducer.items()
                 if not name.startswith("memory/") and name not in anew}  # fmt: skip
        names = sorted({name.split("/", 2)[2] for name in then.reducer if name.startswith("memory/")})
        alive = comm.gather_to_all(had)[0].tolist()
        for name in names:
            own = [np.asarray(then.reducer[f"memory/{i}/{name}"]) for i in range(had.size)]
            flat = comm.gather_to_all(np.concatenate([one.ravel() for one in own]))[0].reshape(len(alive), -1)
            for i, worker in enumerate(has.tolist()):
                values = flat[alive.index(worker)] if worker in alive else np.zeros_like(own[0])
                state[f"memory/{i}/{name}"] = values.reshape(own[0].shape).copy()
        return {**state, "workers": int(has.size), "rank": comm.rank, "ranks": comm.size}

    def _record_loss(self, loss: Loss, norm: float) -> None:
        """Record the lost ranks in the result and in the trace."""
        self.losses.append({"step": self.step, "ranks": loss.ranks, "memory_norm": norm, "seconds": loss.seconds})
        end = self._trace.now()
        self._trace.event("repair", end - int(1e9 * loss.seconds), end, step=self.step)
        if self.run.comm.rank == 0:
            for rank in loss.ranks:
                self._trace.metric("lost_rank", self.step, rank)
            self._trace.metric("lost_memory_norm", self.step, norm)
        self._trace.flush()
