"""The training loop that apps share: gradients of virtual workers, averaged by a scheme, and an optimizer's step.

A task is what an app brings along:

=====================  ==================================================================================
name, metric, better   of the app and its metric; whether ``"higher"`` or ``"lower"`` is better
rows                   rows to train on
fixed                  plain values that a run which resumes must have in common: the data's facts, the model's sizes
parameters             name -> array, the same on all ranks; changed in place
gradients(rows)        mean loss of some rows and name -> gradient, at the parameters as they are
evaluate()             (sum of losses, sum of metrics, count) over this rank's share of the test data
=====================  ==================================================================================

and, where it needs them:

=====================  ==================================================================================
batches                makes what says which rows each worker uses when; default ``Batches``
score(mean)            the metric for the mean of its sums; default the mean itself
further                names of more metrics, whose sums follow the count that ``evaluate`` gives
=====================  ==================================================================================

With error reset and local SGD the ranks' models differ, by the scheme's design; each evaluates its own. With outer
steps all evaluate the common model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from mpicomp import Scheme, optim
from mpicomp.errors import InvalidArgument
from mpicomp.ops import ops_for
from mpicomp.optim import rates
from mpicomp.schemes.compatibility import warn
from mpicomp.trace import NullRecorder

from .averaging import averaging, check_optimizer
from .batches import Batches
from .checkpoints import Keeper, Snapshot, check_length
from .loop_settings import OUTER_SETTINGS, LoopSettings, Point, Report
from .settings import known

Array = Any
Watcher = Callable[[Point, int], None]  # gets every evaluation and the number of steps of the run


class Task(Protocol):
    """See above."""

    name: str
    metric: str
    better: str
    rows: int
    fixed: dict[str, Any]
    parameters: dict[str, Array]

    def gradients(self, rows: np.ndarray) -> tuple[float, dict[str, Array]]: ...

    def evaluate(self) -> tuple[float, ...]: ...


def check(comm: Any, task: Task, settings: LoopSettings, keeper: Keeper) -> LoopSettings:
    """Refuse impossible settings, and different ones, on every rank; the settings written out (collective)."""
    error = None
    try:
        workers = keeper.workers(settings.workers)
        workers = comm.size if workers is None else workers
        settings = replace(settings, workers=workers)
        settings.check(comm.size, task.rows)
        steps_per_epoch = task.rows // (workers * settings.batch)
        settings = settings.resolved(workers, steps_per_epoch)
        check_optimizer(known(settings.optimizer))
        _rate(settings, steps_per_epoch)
    except InvalidArgument as caught:
        error = caught
    comm.agree(f"train {task.name} with {settings} on {task.fixed}", error)
    return settings


def train(comm: Any, task: Task, settings: LoopSettings, trace: Any = None, watch: Watcher | None = None,
          keeper: Keeper | None = None, done: Callable[[Report], None] = lambda report: None) -> Report:
    """Train a task (collective).

    Parameters
    ----------
    comm : mpicomp.Comm
    task : Task
    settings : LoopSettings
    trace : mpicomp.trace.Recorder, optional
        Gets the regions of a step and every number of a ``Point``.
    watch : callable, optional
        Called on every rank after each evaluation.
    keeper : Keeper, optional
        Saves checkpoints, stops the run when asked to, and has what it resumes from.
    done : callable
        Gets the report, on every rank, before the last checkpoint, which may fail.

    Raises
    ------
    InvalidArgument
        On every rank, naming the setting, the expected value and the given one.
    NonFiniteGradient
        On every rank, where training diverged: naming the rank and the array.
    """
    keeper = keeper or Keeper(comm)
    run = LoopRun(comm, task, check(comm, task, settings, keeper), trace or NullRecorder())
    if keeper.saved is not None:
        run.restore(keeper.saved)
        keeper.resumed()
    _descend(run, watch or (lambda point, steps: None), keeper)
    done(run.report)
    if run.report.complete:
        keeper.end(run)
    return run.report


def _descend(run: LoopRun, watch: Watcher, keeper: Keeper) -> None:
    """All steps that are left, with evaluations on schedule, until the metric stops improving."""
    settings, report = run.settings, run.report
    steps = run.total_steps
    every = settings.eval_every or run.batches.steps_per_epoch
    while run.steps < steps and not report.early:
        run.step()
        if run.steps % every == 0 or run.steps == steps:
            better = run.evaluate()
            if better:
                with run.averaging.model():
                    keeper.best(run.steps, run.task.parameters)
            watch(report.series[-1], steps)
        over = run.steps == steps or report.early
        if not over and keeper.after_step(run):
            break
    report.steps, report.complete, report.seconds = run.steps, not keeper.stopped, run.seconds


def _rate(settings: LoopSettings, steps_per_epoch: int) -> rates.Rate:
    return rates.make(settings.schedule, settings.rate, steps_per_epoch, settings.epochs, settings.warmup,
                      settings.rate / known(settings.workers))  # fmt: skip


class LoopRun:
    """The state of one training run on one rank."""

    def __init__(self, comm: Any, task: Task, settings: LoopSettings, trace: Any) -> None:
        self.comm, self.task, self.settings, self.trace = comm, task, settings, trace
        dealt = comm.rank, comm.size, task.rows, known(settings.workers), settings.batch, settings.seed
        self.batches: Batches = getattr(task, "batches", Batches)(*dealt)
        self.total_steps = max(1, round(settings.epochs * self.batches.steps_per_epoch))
        self._count = len(self.batches.own)
        self.averaging = averaging(comm, settings, task.parameters, self._count, self.batches.steps_per_epoch,
                                   trace)  # fmt: skip
        self._optimizer = self.averaging.optimizer
        self._rate = _rate(settings, self.batches.steps_per_epoch)
        self._sam = optim.SAM(task.parameters, settings.sam) if settings.sam else None
        self.steps = 0
        self._bits = 0.0  # of this rank's workers, so far
        self._since = np.zeros(3)  # since the last evaluation: losses, densities, gradients
        self.seconds = {"steps": 0.0, "evaluations": 0.0}
        self.report = Report(task.name, task.metric, settings, {**task.fixed, "ranks": comm.size})
        fixed = (*_FIXED, "epochs") if settings.schedule.startswith("cosine") else _FIXED
        fixed = (*fixed, *OUTER_SETTINGS) if settings.outer is not None else (*fixed, "outer")
        self.fixed = {"app": task.name, **task.fixed, **{name: getattr(settings, name) for name in fixed},
                      "lr": settings.rate}
        if (scheme := settings.scheme_under_adam) and not settings.rate_factor:
            warn(scheme, Scheme.parse(scheme).adam_warning_texts(), comm.rank)

    def step(self) -> None:
        """compute -> compensate, compress, exchange, update (in the reducer) -> descend."""
        start = time.perf_counter()
        with self.trace.step(self.steps):
            with self.trace.region("compute"):
                losses, gradients = self._gradients(self.batches.of(self.steps))
            averaging = self.averaging
            mean = averaging.mean(gradients)
            with self.trace.region("optimizer"):
                self._optimizer.step(mean, self._rate(self.steps))
            averaging.stepped(self.steps + 1 == self.total_steps)
        self._bits += averaging.payload_bits * self._count
        self._since += losses, averaging.density * self._count, self._count
        self.steps += 1
        self.seconds["steps"] += time.perf_counter() - start

    def _gradients(self, rows: list[np.ndarray]) -> tuple[float, dict[str, Array]]:
        """Sum of the losses, and the gradients of this rank's workers: with several, one row a worker."""
        found = [self._gradient(one) for one in rows]
        total = sum(loss for loss, _ in found)
        if len(found) == 1:
            return total, found[0][1]
        return total, {name: _stacked([gradients[name] for _, gradients in found]) for name in self.task.parameters}

    def _gradient(self, rows: np.ndarray) -> tuple[float, dict[str, Array]]:
        loss, gradients = self.task.gradients(rows)
        if self._sam is not None:
            self._sam.ascend(gradients)
            try:
                _, gradients = self.task.gradients(rows)
            finally:
                self._sam.descend()
        if self.settings.clip:
            averaged = known(self.settings.workers) if self.averaging.averages else 1
            _clip(gradients, self.settings.clip * averaged**-0.5)
        return loss, gradients

    def evaluate(self) -> bool:
        """Measure here and now (collective); whether the metric is the best so far."""
        start = time.perf_counter()
        with self.trace.region("evaluate"), self.averaging.model():
            norm = self.averaging.memory_norm() ** 2
            sums = self._over_ranks(np.array([self._bits, norm, *self._since, *self.task.evaluate()]))
        bits, norm, losses, density, gradients, loss, metric, count, *further = sums.tolist()
        workers, score = self.settings.workers, getattr(self.task, "score", float)
        point = Point(
            self.steps, self.steps / self.batches.steps_per_epoch, self._rate(self.steps - 1), losses / gradients,
            loss / count, score(metric / count), density / gradients, bits / workers, math.sqrt(norm / workers),
        )  # fmt: skip
        self._since[:] = 0
        self.report.series.append(point)
        for name, total in zip(getattr(self.task, "further", ()), further, strict=True):
            self.report.further.setdefault(name, []).append(total / count)
        self._record(point)
        self.seconds["evaluations"] += time.perf_counter() - start
        return self._judge(point)

    def _judge(self, point: Point) -> bool:
        """Remember the best metric; say when it has not improved for too long."""
        report, sign = self.report, 1 if self.task.better == "higher" else -1
        better = (report.best is None or sign * point.metric > sign * report.best
                  or (math.isnan(report.best) and not math.isnan(point.metric)))
        if better:
            report.best, report.best_step = point.metric, point.step
        report.early = self._has_waited()
        return better

    def _has_waited(self) -> bool:
        """True if the best metric is as many evaluations old as ``patience`` says."""
        since = sum(one.step > self.report.best_step for one in self.report.series)
        return self.settings.patience is not None and since >= self.settings.patience

    def _record(self, point: Point) -> None:
        if self.comm.rank == 0:
            for name, value in point._asdict().items():
                if name not in ("step", "epoch"):
                    self.trace.metric(self.task.metric if name == "metric" else name, point.step, value)
            for name, values in self.report.further.items():
                self.trace.metric(name, point.step, values[-1])

    def snapshot(self) -> Snapshot:
        """Everything that the next step depends on, and what is reported at the end."""
        training = {"model": self.task.parameters, "optimizer": self._optimizer.state_dict()}
        shared, sums = self.averaging.common, np.array([self._bits, *self._since])
        report = self.report
        progress = {
            "steps": self.steps, "sums": self._over_ranks(sums), "series": [list(point) for point in report.series],
            "further": report.further, "best": report.best, "best_step": report.best_step,
        }  # fmt: skip
        carried = self.comm.gather_to_all(self.batches.carried.reshape(-1))[0].reshape(self.settings.workers, -1)
        common = {"progress": progress, "batches": {"carried": carried}, **(training if shared else {})}
        own = {"sums": {"sums": sums}, **({} if shared else training), **self.averaging.saved()}
        return Snapshot(common, own, self.averaging.reducers)

    def restore(self, saved: Any) -> None:
        """Go on where a checkpoint was written (collective)."""
        saved.check_settings(**self.fixed)
        check_length(saved, self.total_steps, self.batches.steps_per_epoch, self.settings.epochs)
        shared, progress, report = self.averaging.common, saved.common["progress"], self.report
        self.averaging.restore(saved)
        saved.fill("model", self.task.parameters, own=not shared)
        self._optimizer.load_state_dict((saved.common if shared else saved.own)["optimizer"])
        # Over other ranks only the sum is known, and only the sum is ever looked at.
        sums = saved.own["sums"]["sums"] if saved.same_ranks else progress["sums"] * (self.comm.rank == 0)
        self._bits, self._since[:] = float(sums[0]), sums[1:]
        self.steps = report.steps = progress["steps"]
        self.batches.carried[:] = saved.common["batches"]["carried"][list(self.batches.own)]
        report.series, report.further = [Point(*point) for point in progress["series"]], progress["further"]
        report.best, report.best_step = progress["best"], progress["best_step"]
        report.early = self._has_waited()

    def _over_ranks(self, values: np.ndarray) -> np.ndarray:
        total = values.astype(np.float64)
        self.comm.allreduce_in_place(total)
        return total


_FIXED = ("scheme", "workers", "batch", "seed", "optimizer", "lr", "schedule", "warmup", "sam", "clip")


def _clip(gradients: dict[str, Array], limit: float) -> None:
    """Shorten a gradient, all arrays together, to a norm of ``limit``; others report one that is not finite."""
    norm = math.hypot(*(optim.norm(gradient) for gradient in gradients.values()))
    if limit < norm < math.inf:
        for gradient in gradients.values():
            gradient *= limit / norm


def _stacked(arrays: list[Array]) -> Array:
    first = arrays[0]
    out = ops_for(first).empty(len(arrays) * first.size, first.dtype).reshape(len(arrays), *first.shape)
    for row, array in zip(out, arrays, strict=True):
        row[...] = array
    return out
