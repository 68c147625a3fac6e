"""The experiments' own parts, and all of them on little data: every table is filled and every run kept."""

import json
import math
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
import networks  # noqa: E402
import pictures  # noqa: E402
import report  # noqa: E402
import torch_networks  # noqa: E402
from cache import Runs  # noqa: E402
from gisette import gisette_like  # noqa: E402

from mpicomp.apps import images  # noqa: E402

EXPERIMENTS = ("madelon", "gisette", *networks.EXPERIMENTS, *torch_networks.EXPERIMENTS)
RUNNABLE = EXPERIMENTS if find_spec("torch") else EXPERIMENTS[: -len(torch_networks.EXPERIMENTS)]


def test_a_run_is_computed_once_and_reported_without_another(tmp_path: Path) -> None:
    settings = {"scheme": "topk:k=1", "seed": int(np.random.default_rng().integers(1000))}
    assert Runs(tmp_path, dict, jobs=0).all([settings]) == [None]
    (first,) = Runs(tmp_path, dict).all([settings])
    assert {name: first[name] for name in settings} == settings
    (path,) = tmp_path.iterdir()
    path.write_text(json.dumps({"result": "kept"}))
    assert Runs(tmp_path, dict).all([settings]) == ["kept"]


def test_gisette_like_has_probes_that_are_shuffled_features() -> None:
    digits = images.load(f"synthetic:train=300,test=10,seed={np.random.default_rng().integers(1000)}")
    name, features, labels = gisette_like(digits)
    values = features.values
    assert (name, values.shape) == ("gisette-like", (labels.size, 5000))
    assert labels.size == np.isin(digits.train_labels, (4, 9)).sum() and set(labels) == {-1.0, 1.0}
    assert values.min() >= -1 and values.max() <= 1
    real, probes = np.sort(values[:, :2500], axis=0), np.sort(values[:, 2500:], axis=0)
    assert {column.tobytes() for column in probes.T} == {column.tobytes() for column in real.T}
    assert (values[:, 2500:] != values[:, :2500]).any()


@pytest.mark.long("draws every picture")
def test_every_picture_of_the_page_is_drawn_from_the_committed_numbers(tmp_path: Path) -> None:
    pictures.draw(tmp_path, json.loads((ROOT / "docs" / "results" / "fidelity.json").read_text()))
    shown = re.findall(r"images/(fidelity-[a-z-]+\.svg)", (ROOT / "docs" / "development" / "fidelity.md").read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(shown) != []


def test_goals_are_judged_on_the_mean_over_seeds() -> None:
    def ending(*values: float | None) -> list:
        return [{"seed": seed, "diverged": None if value else 7, "curve": {"accuracy": [value]}}
                for seed, value in enumerate(values)]  # fmt: skip

    assert networks.below(ending(0.87, 0.88), ending(0.864, 0.88), 0.5) == "0.3 (goal 0.5: met)"
    assert networks.below(ending(0.87, 0.88), ending(0.86, 0.87), 0.5) == "1.0 (goal 0.5: MISSED)"
    assert networks.below(ending(0.87, 0.88), ending(None, 0.86), 0.5) == "2.0 (goal 0.5: MISSED)"


def test_distances_to_dense_are_relative_for_perplexities_and_points_for_shares() -> None:
    def ending(metric: str, *values: float | None) -> list:
        return [{"seed": seed, "diverged": None if value else 7,
                 "curve": {metric: [9.0, value], "density": [0.5], "bits": [8e6]}}
                for seed, value in enumerate(values)]  # fmt: skip

    dense = ending("perplexity", 100, 200)
    row = torch_networks.row("a", ending("perplexity", 110, 200), dense, "perplexity")
    assert row == {"scheme": "a", "perplexity": "110 / 200", "against dense": "+5.0 %",
                   "loss, nats": f"{math.log(110):.3f} / {math.log(200):.3f}", "sent in all steps, %": "50 / 50",
                   "MB per worker": "1"}  # fmt: skip
    assert torch_networks.row("a", ending("perplexity", None, 190), dense, "perplexity")["against dense"] == "-5.0 %"
    row = torch_networks.row("a", ending("hr@10", 0.5, None), ending("hr@10", 0.6, 0.7), "hr@10")
    assert (row["hr@10"], row["against dense"]) == ("0.5 / -", "-10.0 points")
    assert torch_networks.against(ending("hr@10", 0.6), ending("hr@10", None), "hr@10") == "-"
    assert torch_networks.against(dense, dense, "perplexity") == ""


def test_the_page_has_a_place_for_every_table() -> None:
    done = {name: ([{"a": 1}], {"a run": [{}]}, "nothing") for name in EXPERIMENTS}
    page = report.filled((ROOT / "docs" / "development" / "fidelity.md").read_text(), done)
    assert page.count("| a |\n| --- |\n| 1 |\n\n*Expected:* nothing.") == len(EXPERIMENTS)
    assert report.filled(page, done) == page
    assert report.text(([{"a": "not run"}], {"a run": []}, "1")) == "Not run yet.\n\n*Expected:* 1."
    with pytest.raises(SystemExit, match="must have"):
        report.filled("no place", done)


def run(code: list[str], tmp_path: Path) -> str:
    """A process of its own, for MPI starts in it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *code], cwd=tmp_path, env=environment, capture_output=True, text=True,
                          timeout=800)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stdout + done.stderr
    return done.stdout


def test_a_run_has_the_figures_of_the_training_app(tmp_path: Path) -> None:
    code = """
from pathlib import Path
import jobs
from jobs import everyone, mlp, pictures
from mpicomp.apps import loop
from mpicomp.apps.loop_settings import LoopSettings
from mpicomp.apps.mlp import MLP
data = "synthetic:train=400,test=200,seed=5"
settings = {"scheme": "topk:density=0.1", "workers": 2, "epochs": 2, "lr": 0.02}
mine, app = mlp(data, measures=3, **settings), loop.train(everyone(), MLP(pictures(data), 0), LoopSettings(**settings))
assert mine["curve"]["accuracy"][-1] == app.series[-1].metric > 0.2
assert mine["curve"]["bits"][-1] == app.series[-1].bits > 0
assert mine["curve"]["memory_norm"][-1] == app.series[-1].memory_norm > 0
assert len(mine["measures"]["hamming"]) == 4 and mine["diverged"] is None
more = mlp(data, densities={"weight3": 0.9}, **settings)["curve"]["density"][-1] - mine["curve"]["density"][-1]
assert abs(more * mine["elements"] - 0.8 * 1280) < 3
def first_step(scheme, deliver):
    run = jobs.Training(MLP(pictures(data), 0), LoopSettings(scheme=scheme, workers=2, lr=0.02))
    before = jobs.np.concatenate([w.ravel() for w in run.task.parameters.values()])
    run.step()
    if deliver:
        jobs.deliver_memories(run)
    return jobs.np.concatenate([w.ravel() for w in run.task.parameters.values()]) - before
moved, partly, whole = first_step("dense", False), first_step("dgc:k=1", False), first_step("dgc:k=1", True)
assert abs(whole - moved).max() < 1e-6 < 0.1 * abs(partly - moved).max()
jobs.KEPT = Path("kept")
found, kept = (jobs.kept_minimum(jobs.data.load("synthetic:n=50,d=8,seed=2")) for _ in range(2))
assert (found.x_star == kept.x_star).all() and found[:4] == kept[:4] and len(list(jobs.KEPT.iterdir())) == 1
print("the same")
"""
    assert run(["-c", code], tmp_path) == "the same\n"


@pytest.mark.long("a step of every experiment")
@pytest.mark.timeout(1800)
def test_every_experiment_fills_its_table(tmp_path: Path) -> None:
    words = [str(HERE / "run.py"), *RUNNABLE, "--quick", "--seeds", "1", "--folder", str(tmp_path / "kept")]
    first = run([*words, "--jobs", "1"], tmp_path)
    assert [line.split(":")[0][4:] for line in first.splitlines() if line.startswith("### ")] == list(RUNNABLE)
    assert "not run" not in first
    assert run([*words, "--jobs", "0"], tmp_path) == first
