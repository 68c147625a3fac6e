"""One training run of an experiment through the public API: in one process with virtual workers, or on ``ranks``.

Settings and results are plain values; a result holds curves as name -> list. Under a launcher,
``python jobs.py SETTINGS FILE`` is one rank of a run: settings as JSON, the result into FILE.
"""

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from gisette import gisette_like
from mpi4py import MPI

import mpicomp
from mpicomp.apps import data, images, logreg, logreg_result, loop, ratings, texts
from mpicomp.apps.averaging import EveryStep
from mpicomp.apps.checkpoints import Keeper
from mpicomp.apps.data import fingerprint
from mpicomp.apps.loop_settings import LoopSettings
from mpicomp.apps.mlp import MLP
from mpicomp.apps.settings import Settings
from mpicomp.errors import NonFiniteGradient
from mpicomp.trace import NullRecorder

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
from run_mpi import job_command, job_environment  # noqa: E402  (beside this folder)

KEPT = ROOT / "out" / "fidelity" / "minima"
DATA = Path(os.environ.get("MPICOMP_DATA", ROOT.parent / "shared" / "data"))
EVALUATIONS = 3  # an epoch


def compute(settings):
    """Run what ``settings["kind"]`` names, on as many ranks as ``settings["ranks"]`` says (one if absent)."""
    rest = {name: value for name, value in settings.items() if name not in ("kind", "ranks")}
    if settings.get("ranks", 1) != everyone().size:
        return on_ranks(settings)
    kinds = {"mlp": mlp, "logreg": convex, "steps": early_steps, "minimum": minimum, "language": language,
             "recommend": recommend, "vision": vision}  # fmt: skip
    return kinds[settings["kind"]](**rest)


def on_ranks(settings):
    """Run a job of ``settings["ranks"]`` ranks and read its result."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [*job_command(Path(sys.executable), settings["ranks"]), __file__, json.dumps(settings), str(result)]
        subprocess.run(command, env=job_environment(), stdin=subprocess.DEVNULL, check=True)
        return json.loads(result.read_text())


@cache
def everyone():
    """All ranks of this job; this process if no launcher started it."""
    return mpicomp.Comm(MPI.COMM_WORLD)


@cache
def pictures(name):
    """Fashion-MNIST, MNIST, CIFAR-10's archive, or ``synthetic:...``."""
    return images.load(found(name))


@cache
def text(name, tokens, held_out):
    """The beginning of a text, as much of it as is wanted."""
    return texts.load(found(name), tokens=tokens, eval_tokens=held_out)


def found(name):
    """Path of a data set in the folder of data sets; ``synthetic:...`` stays as it is."""
    return name if name.startswith("synthetic") else str(DATA / name)


class PerPixel(MLP):
    """The perceptron on images of which every pixel is scaled by its own mean and deviation."""

    def __init__(self, data, seed):
        super().__init__(data, seed)
        pixels = data.train_images.reshape(len(data.train_images), -1)
        self._centre = pixels.mean(axis=0).astype(np.float32)
        self._spread = pixels.std(axis=0).astype(np.float32) + 1  # a grey level: some pixels are always empty


class Training(loop.LoopRun):
    """The loop of ``mpicomp train``, with measures of the memories and the sum of their errors.

    Parameters
    ----------
    task : mpicomp.apps.loop.Task
    settings : LoopSettings
    measures : int
        Work out the reducer's measures every so many steps; 0 is never.
    densities : mapping of name -> float, optional
        Of single arrays, as a ``Reducer`` takes them.
    """

    def __init__(self, task, settings, measures=0, densities=None):
        settings = loop.check(everyone(), task, settings, Keeper(everyone()))
        super().__init__(everyone(), task, settings, NullRecorder())
        # The app's own reducer, but for measures and densities, which the command has no options for.
        self.reducer = mpicomp.Reducer(
            everyone(), settings.scheme, workers=self._count, measures=measures, densities=densities
        )  # fmt: skip
        self.averaging = EveryStep(everyone(), self.reducer, self.averaging.optimizer)
        self.sent = self.total_error = 0.0  # of this rank's workers

    def step(self):
        """One step of all workers."""
        super().step()
        self.sent += self.reducer.stats.density
        self.total_error += self.reducer.memory_norm() ** 2 / self.settings.workers


def mlp(data="fashion-mnist", measures=0, seed=0, per_pixel=False, deliver=False, densities=None, **settings):
    """Train the perceptron on images."""
    task = (PerPixel if per_pixel else MLP)(pictures(data), seed)
    return trained(task, LoopSettings(seed=seed, **settings), measures, deliver, densities)


# The apps that follow are imported where they run: PyTorch takes seconds, and is not needed by the others.


def language(data="wikitext-2", tokens=None, held_out=None, width=128, bptt=35, seed=0, **settings):
    """Train an LSTM on the beginning of a text."""
    from mpicomp.apps.language import Language

    task = Language(text(data, tokens, held_out), seed, width=width, bptt=bptt)
    return trained(task, LoopSettings(seed=seed, **settings))


def recommend(data, seed=0, **settings):
    """Train NeuMF on ratings."""
    from mpicomp.apps.recommend import Recommend

    return trained(Recommend(ratings.load(found(data)), seed), LoopSettings(seed=seed, **settings))


def vision(data="cifar-10/cifar10_jpeg_12000.npz", network="resnet8", seed=0, **settings):
    """Train a convolutional network on images."""
    from mpicomp.apps.vision import Vision

    return trained(Vision(pictures(data), seed, network), LoopSettings(seed=seed, **settings))


def trained(task, settings, measures=0, deliver=False, densities=None):
    """Train; return the curve of an epoch's thirds (of the run's, if shorter), and the requested measures.

    With ``deliver`` what the memories still hold after the last step is applied before the last evaluation.
    """
    run = Training(task, settings, measures, densities)
    every = max(1, min(run.batches.steps_per_epoch, run.total_steps) // EVALUATIONS)
    curve, measured, diverged = Curve(), Curve(), None
    try:
        while run.steps < run.total_steps:
            run.step()
            if run.reducer.stats.measures:
                measured.add(step=run.steps, **run.reducer.stats.measures)
            if run.steps % every == 0 or run.steps == run.total_steps:
                if deliver and run.steps == run.total_steps:
                    deliver_memories(run)
                run.evaluate()
                point = run.report.series[-1]
                curve.add(step=run.steps, **{task.metric: point.metric}, loss=point.train_loss, bits=point.bits,
                          memory_norm=point.memory_norm, total_error=everyone().allreduce(run.total_error),
                          density=run.sent / run.steps)
    except NonFiniteGradient:
        diverged = run.steps
    return {"scheme": run.settings.scheme, "optimizer": run.settings.optimizer, "diverged": diverged,
            "elements": sum(w.size for w in task.parameters.values()), "curve": curve, "measures": measured}


def deliver_memories(run):
    """Change the model as one more step would that sent all that the workers hold back; the memories stay."""
    state, workers = run.reducer.state_dict(), run.settings.workers
    held, place = sum(state[f"memory/{worker}/residual"] for worker in range(workers)) / workers, 0
    for array in run.task.parameters.values():
        array -= run.settings.lr * held[place : place + array.size].reshape(array.shape)
        place += array.size


def early_steps(data="fashion-mnist", steps=40, seed=0, **settings):
    """Means of the measures over the second half of a few steps."""
    run = Training(MLP(pictures(data), seed), LoopSettings(seed=seed, **settings), measures=1)
    curve = Curve()
    for _ in range(steps):
        run.step()
        curve.add(**run.reducer.stats.measures)
    return {name: float(np.mean(values[steps // 2:])) for name, values in curve.items()}


class Curve(dict):
    """Name -> values, one more of each at every call."""

    def add(self, **values):
        for name, value in values.items():
            self.setdefault(name, []).append(value)


@cache
def problem(name, rows):
    """A data set with the constants and the minimum of its objective."""
    if name == "gisette-like":
        source = gisette_like(pictures("mnist"))
        return source, kept_minimum(source)
    source = data.load(found(name), rows)
    return source, logreg.define(everyone(), source, Settings(workers=1))


def kept_minimum(source):
    """Constants and minimum of a problem so large that they take minutes: from a file if it exists."""
    path = KEPT / f"{source.name}-{fingerprint(source):08x}.npz"
    if not path.exists():
        constants = logreg.define(everyone(), source, Settings(workers=1))
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{os.getpid()}-{path.name}")
        np.savez(part, **constants._asdict())
        part.replace(path)
    with np.load(path) as kept:
        return logreg_result.Problem(*(kept[name] if name == "x_star" else float(kept[name])
                                       for name in logreg_result.Problem._fields))


def minimum(data):
    """Find the minimum of a problem before runs that need it begin side by side."""
    constants = problem(data, None)[1]
    return {"L": constants.smoothness, "gamma": constants.step_size, "f_star": constants.f_star}


def convex(data="madelon/madelon.mat", rows=None, every=10, lam_on_update=None, **settings):
    """Logistic regression from near its minimum; ``lam_on_update`` is a threshold on gamma * g."""
    source, constants = problem(data, rows)
    if lam_on_update is not None:
        settings["scheme"] += f",lam={lam_on_update / constants.step_size!r}"
    settings = Settings(**settings)
    settings.check(1, source.labels.size)
    run = logreg.Run(everyone(), source, settings, constants, NullRecorder())
    start, curve = run.evaluate().gap + constants.f_star, Curve()
    steps = settings.epochs * run.steps_per_epoch
    for samples in run.samples(steps):
        run.step(samples)
        if run.steps % every == 0 or run.steps == steps:
            curve.add(**run.evaluate()._asdict())
    return {"scheme": settings.scheme, "L": constants.smoothness, "gamma": constants.step_size,
            "f_star": constants.f_star, "f_x0": start, "curve": curve}


if __name__ == "__main__":
    outcome = compute(json.loads(sys.argv[1]))
    if everyone().rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(outcome))
