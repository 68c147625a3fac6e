"""The perceptron and the common loop in one process: right gradients, the optimizer's path, early stop, refusals."""

import json
import resource

import numpy as np
import pytest

from mpicomp import checkpoint
from mpicomp.apps import images, loop, plots
from mpicomp.apps.checkpoints import Keeper
from mpicomp.apps.loop_settings import LoopSettings
from mpicomp.apps.mlp import MLP
from mpicomp.errors import InvalidArgument, MpicompError, NonFiniteGradient, RefusedOverwrite

DATA = images.load("synthetic:train=200,test=80,seed=1")


def task(seed=0):
    return MLP(DATA, seed, hidden=(12, 8))


def test_gradients_by_differences():
    model, rows = task(), np.arange(17)
    for name, w in model.parameters.items():
        model.parameters[name] = w.astype(np.float64)
    _, gradients = model.gradients(rows)
    rng = np.random.default_rng()
    for name, w in model.parameters.items():
        for _ in range(5):
            at = tuple(rng.integers(size) for size in w.shape)
            if name == "weight1":
                at = (int(DATA.train_images[:17].reshape(17, -1).sum(axis=0).argmax()), at[1])
            before, h, losses = w[at], 1e-4, []
            for shift in (h, -h):
                w[at] = before + shift
                losses.append(model.gradients(rows)[0])
            w[at] = before
            assert gradients[name][at] == pytest.approx((losses[0] - losses[1]) / (2 * h), rel=2e-2, abs=2e-4)


def test_a_dense_run_is_sgd_with_momentum(alone):
    """Against the recursion on the whole batch of all workers."""
    report = loop.train(alone, trained := task(), LoopSettings(workers=4, batch=10, epochs=1, lr=0.1))
    model, velocity = task(), dict.fromkeys(trained.parameters, 0)
    batches = loop.Batches(0, 1, 200, 4, 10, 0)
    for step in range(5):
        _, gradients = model.gradients(np.concatenate(batches.of(step)))
        for name, g in gradients.items():
            velocity[name] = 0.9 * velocity[name] + g
            model.parameters[name] -= 0.1 * velocity[name]
    for name, w in model.parameters.items():
        np.testing.assert_allclose(trained.parameters[name], w, atol=2e-6)
    loss, right, count = model.evaluate()
    point = report.series[-1]
    assert (point.test_loss, point.metric) == (pytest.approx(loss / count, rel=1e-4), pytest.approx(right / count))
    assert point.density == 1 and point.step == 5 == report.steps and report.best == point.metric


def test_a_rank_without_test_images():
    few = images.load("synthetic:train=20,test=1")
    assert MLP(few, 0, rank=2, ranks=3).evaluate() == (0, 0, 0)


def test_it_learns_and_reports(alone):
    report = loop.train(alone, task(), LoopSettings("topk:density=0.1", workers=2, batch=10, epochs=6, lr=0.02))
    assert report.series[-1].metric > 0.25  # by chance: 0.1
    assert report.series[-1].train_loss < report.series[0].train_loss
    assert 0.1 < report.series[-1].density < 0.12 and report.series[-1].memory_norm > 0
    assert json.loads(json.dumps(report.to_dict()))["best"] == report.best


def test_options_of_the_loop(alone):
    settings = LoopSettings("dgc:density=0.1", workers=2, batch=10, epochs=1, compress_warmup=0.5, warmup=0.5, sam=0.05)
    report = loop.train(alone, task(), settings)
    assert report.settings.optimizer == "sgd" and "warmup=5" in report.settings.scheme
    assert loop.train(alone, task(), LoopSettings(workers=1, epochs=1)).settings.optimizer == "sgd:momentum=0.9"


def test_sam_changes_the_path(alone):
    plain, sharp = task(), task()
    for model, rho in ((plain, 0.0), (sharp, 0.5)):
        loop.train(alone, model, LoopSettings(workers=1, epochs=1, sam=rho))
    assert not np.array_equal(plain.parameters["weight1"], sharp.parameters["weight1"])


class Scripted:
    """A task of one number, whose metric follows a list."""

    name, metric, better, rows, fixed = "scripted", "error", "lower", 10, {}

    def __init__(self, metrics):
        self.parameters = {"x": np.zeros(1, np.float32)}
        self.metrics = iter(metrics)

    def gradients(self, rows):
        return 1.0, {"x": np.ones(1, np.float32)}

    def evaluate(self):
        return 0.0, next(self.metrics), 1


def test_early_stop_and_best(alone):
    report = loop.train(alone, Scripted([5, 3, 4, 3, 1]), LoopSettings(workers=1, batch=1, epochs=9, patience=2))
    assert (report.best, report.best_step, report.steps, report.early) == (3, 20, 40, True)


def test_any_metric_is_better_than_nan(alone):
    nan = float("nan")
    settings = LoopSettings(workers=1, batch=1, epochs=5, patience=2)
    report = loop.train(alone, Scripted([nan, 3, nan, 2, 4]), settings)
    assert (report.best, report.best_step, report.early) == (2, 40, False)
    assert loop.train(alone, Scripted([nan] * 5), settings).steps == 30


def test_a_best_model_that_cannot_be_written_does_not_end_the_training(alone, tmp_path):
    said = []
    keeper = Keeper(alone, tmp_path, say=said.append)
    keeper.best(1, {"x": np.ones(1)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        keeper.best(2, {"x": np.zeros(1 << 18)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(said) == 1 and said[0].startswith("warning: cannot write") and said[0].endswith("without this best.h5")
    assert checkpoint.load_arrays(tmp_path / "best.h5")["about"]["step"] == 1
    with pytest.raises(InvalidArgument, match="must be an array of numbers"):
        keeper.best(3, {"x": np.array(["text"])})


def test_a_run_that_has_stopped_early_goes_on_with_more_patience(alone, tmp_path):
    def train(metrics, patience, **keeping):
        settings = LoopSettings(workers=1, batch=1, epochs=0.5, eval_every=1, patience=patience)
        return loop.train(alone, Scripted(metrics), settings, keeper=Keeper(alone, tmp_path, **keeping))

    stopped = train([5, 3, 4, 4], 2)
    assert stopped.early and stopped.steps == 4
    assert train([], 2, resume=True).to_dict()["steps"] == 4
    patient = train([4, 2], 4, resume=True)
    assert (patient.early, patient.steps, patient.best, patient.best_step) == (False, 5, 3, 2)


class Scored(Scripted):
    """With a metric made from the mean, and one more."""

    further = ("half",)

    def evaluate(self):
        value = next(self.metrics)
        return 0.0, 2.0 * value, 2, 1.0 * value

    @staticmethod
    def score(mean):
        return mean + 100


def test_scores_and_further_metrics(alone, tmp_path):
    settings = LoopSettings(workers=1, batch=1, epochs=2)
    report = loop.train(alone, Scored([5, 3]), settings, keeper=Keeper(alone, tmp_path))
    assert [point.metric for point in report.series] == [105, 103] and report.further == {"half": [2.5, 1.5]}
    resumed = loop.train(alone, Scored([1]), LoopSettings(workers=1, batch=1, epochs=3),
                         keeper=Keeper(alone, tmp_path, resume=True))  # fmt: skip
    assert resumed.further == {"half": [2.5, 1.5, 0.5]} and resumed.best == 101


def test_clipping_bounds_what_all_workers_add_up_to(alone):
    """Against the same run by hand: every worker's gradient of all arrays shortened to clip / sqrt(workers)."""
    workers, clip = 4, 0.01
    trained = task()
    loop.train(alone, trained, LoopSettings(workers=workers, batch=10, epochs=0.2, optimizer="sgd", lr=1.0, clip=clip))
    model, sums = task(), {}
    for rows in loop.Batches(0, 1, 200, workers, 10, 0).of(0):
        _, gradients = model.gradients(rows)
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients.values()))
        assert norm > clip / 2
        for name, g in gradients.items():
            sums[name] = sums.get(name, 0) + g * (clip / 2 / norm)
    for name, w in model.parameters.items():
        np.testing.assert_allclose(trained.parameters[name], w - sums[name] / workers, atol=1e-7)


def test_a_run_that_diverges_is_an_error(alone):
    bad = Scripted([1])
    bad.gradients = lambda rows: (float("nan"), {"x": np.full(1, np.nan, np.float32)})
    with pytest.raises(NonFiniteGradient, match=r"x\[0\] is nan"):
        loop.train(alone, bad, LoopSettings(workers=1, batch=1))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"workers": 0}, "workers must be at least 1"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"workers": 10, "batch": 30}, "at least 300 rows .*, got 200"),
        ({"epochs": 0}, "epochs must be positive"),
        ({"epochs": 1e308}, "epochs must be positive and at most"),
        ({"compress_warmup": 1e308, "scheme": "topk:density=0.1"}, "compress_warmup must be from 0 to"),
        ({"optimizer": "sgdd"}, "unknown optimizer"),
        ({"schedule": "step"}, "at must be epochs"),
        ({"lr": 0.0}, "learning rate must be positive"),
        ({"sam": -1.0}, "sam must be at least 0"),
        ({"clip": float("nan")}, "clip must be at least 0"),
        ({"scheme": "dgc", "optimizer": "sgd:momentum=0.9"}, "has the momentum itself"),
        ({"scheme": "dgc", "optimizer": "sgd:momentum=0.9,weight_decay=0.01"}, "has the momentum itself"),
        ({"scheme": "dgc", "optimizer": "adam:weight_decay=0.01"}, "has the momentum itself"),
        ({"scheme": "none"}, "unknown scheme"),
    ],
)
def test_what_is_refused(alone, changes, text):
    with pytest.raises(InvalidArgument, match=text):
        loop.train(alone, task(), LoopSettings(**changes))


def test_the_folder_of_checkpoints(alone, tmp_path):
    settings, said = LoopSettings(workers=2, batch=10, epochs=1), []
    loop.train(alone, task(), settings, keeper=Keeper(alone, tmp_path, every=4, resume=True, say=said.append))
    assert "beginning" in said[0] and (tmp_path / "best.h5").is_file()
    with pytest.raises(RefusedOverwrite, match="holds checkpoints up to step 10"):
        Keeper(alone, tmp_path)
    again = loop.train(alone, task(), settings, keeper=Keeper(alone, tmp_path, resume=True))
    assert again.steps == 10 and again.complete and len(again.series) == 1
    with pytest.raises(InvalidArgument, match="saved with batch=10, got 9"):
        loop.train(alone, task(), LoopSettings(workers=2, batch=9), keeper=Keeper(alone, tmp_path, resume=True))
    for arguments, text in (({"resume": True}, "need a folder"), ({"folder": tmp_path, "every": 0}, "at least 1")):
        with pytest.raises(InvalidArgument, match=text):
            Keeper(alone, **arguments)


def test_a_best_model_is_not_replaced_without_resume(alone, tmp_path):
    """It may be of a run that was killed before its first checkpoint, or whose checkpoints were removed."""
    Keeper(alone, tmp_path).best(1, {"x": np.ones(1)})
    with pytest.raises(RefusedOverwrite, match=r"best\.h5 exists already: --resume to replace it"):
        Keeper(alone, tmp_path)
    assert checkpoint.load_arrays(tmp_path / "best.h5")["about"]["step"] == 1
    Keeper(alone, tmp_path, resume=True)


def test_a_folder_that_cannot_be_written_is_told_before_the_training(alone, tmp_path):
    """Not at its end, when hours of work would be lost."""
    (tmp_path / "file").write_text("mine")
    for folder, why in ((tmp_path / "file", "it is a file"), (tmp_path / "file" / "below", "Not a directory")):
        for resume in (False, True):
            with pytest.raises(MpicompError, match=f"cannot write checkpoints into {folder}: {why}; choose another"):
                Keeper(alone, folder, resume=resume)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_picture(alone, tmp_path):
    pytest.importorskip("matplotlib")
    report = loop.train(alone, task(), LoopSettings(workers=1, epochs=2))
    plots.draw(tmp_path / "x.png", report, plots.check("x.png"))
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(InvalidArgument, match=r"ends in one of \.png"):
        plots.check("x.gif")
