"""Distributed stochastic gradient descent on logistic regression, with compressed averaging and error memory.

Every one of n virtual workers samples one row of its shard a step; the memory acts on the update gamma * g:

    u_i = e_i + gamma g_i;   e_i <- u_i - C(u_i);   x <- x - (1/n) sum_i C(u_i)

The trajectory depends on seed and number of workers, not on the number of ranks they are spread over.

Reference: Sahu et al., Rethinking gradient sparsification as total error minimization, NeurIPS 2021, section 6.1.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from mpicomp import Reducer, Scheme
from mpicomp.checkpoint import common_result
from mpicomp.errors import InvalidArgument
from mpicomp.trace import NullRecorder

from . import logistic
from .checkpoints import Keeper, Snapshot, check_length, check_ranks
from .data import Dataset, fingerprint, read_once
from .logreg_result import Evaluation, Problem, Result
from .settings import Settings, known
from .shards import Shards

ON_GRADIENTS_SCALE = ("lam", "unit", "clip")  # options of schemes that are compared with magnitudes


Watcher = Callable[[Evaluation, int], None]  # gets every evaluation and the number of steps of the run


def train(comm: Any, data: Dataset, settings: Settings, trace: Any = None, watch: Watcher | None = None,
          keeper: Keeper | None = None, kind: type[Run] | None = None,
          done: Callable[[Result], None] = lambda result: None) -> Result:
    """Train from ``x* + shift`` and measure how the gap closes with the bits sent (collective).

    Parameters
    ----------
    comm : mpicomp.Comm
    data : Dataset
        The whole data set, on every rank; see ``mpicomp.apps.data.share``.
    settings : Settings
    trace : mpicomp.trace.Recorder, optional
        Gets the regions of a step and the metrics gap, bits, density and memory_norm.
    watch : callable, optional
        Called on every rank after each evaluation.
    keeper : Keeper, optional
        Saves checkpoints, stops the run when asked to, and has what it resumes from.
    kind : type, optional
        What a step is; by default ``Run``.
    done : callable
        Gets the result, on every rank, before the last checkpoint, which may fail.

    Raises
    ------
    InvalidArgument
        On every rank, naming the setting, the expected value and the given one.
    """
    keeper = keeper or Keeper(comm)
    settings = check(comm, data, settings, keeper)
    start = time.perf_counter()
    kind = kind or Run
    problem = define(comm, data, settings) if keeper.saved is None else _problem_of(keeper.saved, kind.app)
    solved = time.perf_counter() - start
    run = kind(comm, data, settings, problem, trace or NullRecorder())
    f_start = keeper.saved.common["progress"]["f_start"] if keeper.saved else run.evaluate().gap + problem.f_star
    run.result = result = Result(settings, describe(data, known(settings.workers), comm.size), problem, f_start)
    if keeper.saved is not None:
        run.restore(keeper.saved)
        keeper.resumed()
    _descend(run, settings, result, watch or (lambda evaluation, steps: None), keeper)
    result.bytes_sent = run.mean_bytes_sent()
    result.seconds = {"minimum": solved, **run.seconds}
    done(result)
    if result.complete:
        keeper.end(run)
    return result


def _problem_of(saved: Any, app: str) -> Problem:
    """The constants that the run to resume has found (collective)."""
    saved.check_settings(app=app)
    return Problem(**saved.common["problem"])


def define(comm: Any, data: Dataset, settings: Settings) -> Problem:
    """L, l2, gamma and the minimum, found by rank 0 and told to all, so that all have the same bits (collective)."""
    return read_once(comm, lambda: _solve(data, settings))


def _solve(data: Dataset, settings: Settings) -> Problem:
    smoothness = logistic.smoothness(data.features)
    if not 0 < smoothness < math.inf:
        raise InvalidArgument(f"L of {data.name} must be positive and finite, got {smoothness:g}: scale the features")
    l2 = smoothness / 1e4 if settings.l2 is None else settings.l2
    step_size = 1 / (smoothness + l2) if settings.step_size is None else settings.step_size
    try:
        optimum = logistic.minimise(data.features, data.labels, l2)
    except np.linalg.LinAlgError as error:
        raise InvalidArgument(f"l2 must be larger for {data.name}, got {l2:g}: f has no single minimum") from error
    return Problem(smoothness, l2, step_size, optimum.value, optimum.x)


def check(comm: Any, data: Dataset, settings: Settings, keeper: Keeper) -> Settings:
    """Refuse impossible settings or data, and different settings, on every rank (collective).

    Returns the settings with the number of workers.
    """
    error = None
    try:
        workers = keeper.workers(settings.workers)
        settings = replace(settings, workers=comm.size if workers is None else workers)
        settings.check(comm.size, data.labels.size)
        if not data.features.nonzeros:
            raise InvalidArgument(f"all features of {data.name} are zero: there is nothing to learn from")
    except InvalidArgument as caught:
        error = caught
    comm.agree(f"train with {settings}", error)
    return settings


def describe(data: Dataset, workers: int, ranks: int) -> dict[str, Any]:
    """The facts of the data and of who works on it, for a result."""
    rows, features = data.features.shape
    return {
        "name": data.name, "rows": rows, "features": features,
        "nonzeros": data.features.nonzeros, "workers": workers, "ranks": ranks,
    }  # fmt: skip


def _descend(run: Run, settings: Settings, result: Result, watch: Watcher, keeper: Keeper) -> None:
    """All steps that are left."""
    steps = settings.epochs * run.steps_per_epoch
    for samples in run.samples(steps):
        run.step(samples)
        evaluate_if_due(run, settings, result, watch, steps)
        if run.steps < steps and keeper.after_step(run):
            break
    result.steps, result.complete = run.steps, not keeper.stopped


def evaluate_if_due(run: Run, settings: Settings, result: Result, watch: Watcher, steps: int) -> None:
    """Evaluate once for each target of bits that this step has reached, and on schedule (collective)."""
    targets = sorted(settings.target_bits)
    while len(result.targets) < len(targets) and run.bits() >= targets[len(result.targets)]:
        result.targets.append(run.evaluate())
    every = settings.eval_every or run.steps_per_epoch
    if run.steps % every == 0 or run.steps == steps:
        result.series.append(run.evaluate())
        watch(result.series[-1], steps)


class Run:
    """The state of one training run on one rank."""

    result: Result
    app = "logreg"
    scheme_options: ClassVar[dict[str, Any]] = {}  # what the app adds to the scheme

    def __init__(self, comm: Any, data: Dataset, settings: Settings, problem: Problem, trace: Any) -> None:
        workers = known(settings.workers)
        self.comm, self.problem, self.trace = comm, problem, trace
        self._rows, self._workers = data.labels.size, workers
        self.shards = Shards(comm.rank, comm.size, data, workers, settings.seed)
        scheme = on_update_scale(settings.scheme, problem.step_size).replace(**self.scheme_options)
        self.reducer = Reducer(
            comm, scheme, workers=self.shards.count, algorithm=settings.algorithm, trace=trace
        )
        self.x = problem.x_star + settings.shift
        self.steps_per_epoch = self.shards.steps_per_epoch
        self.steps = 0
        self.sums = np.zeros(4)  # over steps and this rank's workers: bits, density, |e|^2; |e|^2 of the last step
        self.bytes_sent = 0
        self.seconds = {"steps": 0.0, "evaluations": 0.0}
        self.fixed = {  # what a run that resumes must have in common with this one
            "app": self.app, "scheme": settings.scheme, "workers": workers, "seed": settings.seed,
            "shift": settings.shift, "l2": settings.l2, "step_size": settings.step_size,
            "target_bits": sorted(settings.target_bits),
            "data": {"name": data.name, "rows": self._rows, "features": self.x.size, "crc32": fingerprint(data)},
        }  # fmt: skip

    def snapshot(self) -> Snapshot:
        """Everything that the next step depends on, and what is reported at the end."""
        model = {"model": {"x": self.x}}
        shared = common_result(self.reducer)
        sums = np.array([*self.sums, self.bytes_sent])
        result = self.result
        common = {
            "problem": self.problem._asdict(),
            "progress": {"steps": self.steps, "f_start": result.f_start, "sums": self._over_ranks(sums),
                         "series": [list(e) for e in result.series], "targets": [list(e) for e in result.targets]},
            **(model if shared else {}),
        }  # fmt: skip
        own = {"sums": {"sums": sums}, **({} if shared else model)}
        return Snapshot(common, own, {"reducer": self.reducer})

    def restore(self, saved: Any) -> None:
        """Go on where a checkpoint was written (collective)."""
        saved.check_settings(**self.fixed)
        epochs = self.result.settings.epochs
        check_length(saved, epochs * self.steps_per_epoch, self.steps_per_epoch, epochs)
        shared, progress = common_result(self.reducer), saved.common["progress"]
        check_ranks(self.comm, saved, self.reducer)
        saved.restore(self.reducer)
        self.x = (saved.common if shared else saved.own)["model"]["x"]
        if saved.same_ranks:
            sums = saved.own["sums"]["sums"]
        else:  # over other ranks only their sum is known, and only their sum is ever looked at
            sums = progress["sums"] * (self.comm.rank == 0)
        self.sums, self.bytes_sent = sums[:4].copy(), int(sums[4])
        self.steps = progress["steps"]
        self.result.series = [Evaluation(*one) for one in progress["series"]]
        self.result.targets = [Evaluation(*one) for one in progress["targets"]]

    def samples(self, steps: int) -> Iterator[Any]:
        """Samples of each remaining step of ``steps``."""
        return self.shards.samples(steps, self.steps)

    def step(self, samples: Any) -> None:
        """compute -> compensate, compress, exchange, update (in the reducer) -> descend."""
        start = time.perf_counter()
        with self.trace.step(self.steps):
            with self.trace.region("compute"):
                updates = self.updates(samples)
            self.x -= self.reducer.reduce(updates)
        self.steps += 1
        self._account()
        self.seconds["steps"] += time.perf_counter() - start

    def updates(self, samples: Any) -> np.ndarray:
        """gamma g_i of this rank's workers: one row a worker (one worker: one vector), in float32 for the wire."""
        rows = self.shards.features.dense_rows(samples)
        labels = self.shards.labels[samples]
        # Summed row by row, not by a matrix product: so the bits do not depend on how many workers a rank holds.
        margins = labels * (rows * self.x).sum(axis=1)
        rows *= (-labels * logistic.slopes(margins))[:, None]
        rows += self.problem.l2 * self.x
        rows *= (self.problem.step_size * self.shards.weights)[:, None]
        with np.errstate(over="ignore"):  # the reducer refuses infinity, on every rank
            updates = rows.astype(np.float32)
        return updates if self.shards.count > 1 else updates[0]

    def _account(self) -> None:
        stats, count = self.reducer.stats, self.shards.count
        error = self.reducer.memory_norm() ** 2
        self.sums[:3] += stats.payload_bits * count, stats.density * count, error
        self.sums[3] = error
        self.bytes_sent += stats.bytes_sent

    def bits(self) -> float:
        """Bits that the mean worker has sent (collective)."""
        return float(self._over_ranks(self.sums[:1])[0]) / self._workers

    def mean_bytes_sent(self) -> float:
        return float(self._over_ranks(np.array([float(self.bytes_sent)]))[0]) / self.comm.size

    def evaluate(self) -> Evaluation:
        """Measure here and now (collective); every rank computes the losses of its own rows."""
        start = time.perf_counter()
        with self.trace.region("evaluate"):
            shards, problem = self.shards, self.problem
            loss = logistic.losses(shards.labels * shards.features.times(self.x)).sum()
            total = self._over_ranks(np.array([loss, self.x @ self.x, *self.sums]))  # x may differ between ranks
        bits, density, total_error, error = (total[2:] / self._workers).tolist()
        value = float(total[0] / self._rows + 0.5 * problem.l2 * (total[1] / self.comm.size))
        evaluation = Evaluation(
            self.steps, self.steps / self.steps_per_epoch, bits, value - problem.f_star,
            density / max(1, self.steps), total_error, math.sqrt(error),
        )  # fmt: skip
        self._record(evaluation)
        self.seconds["evaluations"] += time.perf_counter() - start
        return evaluation

    def _record(self, evaluation: Evaluation) -> None:
        if self.comm.rank == 0:
            for name in ("gap", "bits", *["density"] * (evaluation.step > 0), "memory_norm"):  # no step has no density
                self.trace.metric(name, evaluation.step, getattr(evaluation, name))

    def _over_ranks(self, values: np.ndarray) -> np.ndarray:
        total = values.copy()
        self.comm.allreduce_in_place(total)
        return total


def on_update_scale(scheme: str, step_size: float) -> Scheme:
    """The scheme for updates gamma * g: options on the gradient's scale, such as lam, become gamma times as large."""
    parsed = Scheme.parse(scheme)
    given = {name: parsed.options[name] * step_size for name in ON_GRADIENTS_SCALE if parsed.options.get(name)}
    return parsed.replace(**given) if given else parsed
