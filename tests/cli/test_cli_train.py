"""``mpicomp train`` under a launcher: a signal ends the job with a checkpoint and a code of its own, and it goes on."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from progress import PATIENCE_S, until

from mpicomp.cli import console

STOPPED = 75
PROBLEM = ["train", "logreg", "--data", "synthetic:n=60,d=10,seed=1", "--workers", "3", "--scheme", "topk:k=2"]


def ended(process):
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def test_a_signal_stops_the_job_with_a_checkpoint_to_go_on_from(begin, tmp_path):
    folder = tmp_path / "run"
    job = begin(*PROBLEM, "--epochs", "1000000", "--checkpoint", str(folder), "--checkpoint-every", "5")
    until((folder / "latest").exists, job)
    job.send_signal(signal.SIGUSR1)  # launchers forward it to the ranks
    code, _, err = ended(job)
    assert code == STOPPED, err
    assert "stopped by SIGUSR1 and saved in" in err and "not complete" in err and "Traceback" not in err
    facts = json.loads((folder / (folder / "latest").read_text().strip() / "manifest.json").read_text())["manifest"]
    assert not facts["complete"] and facts["step"] >= 5

    code, _, err = ended(begin(*PROBLEM, "--epochs", "1", "--checkpoint", str(folder)))
    assert code == 1 and f"holds checkpoints up to step {facts['step']}" in err, err
    code, out, err = ended(begin(*PROBLEM, "--epochs", "1", "--checkpoint", str(folder), "--resume", "--json"))
    assert code == 0 and f"resumed after step {facts['step']} from" in err, err
    document = json.loads(out)
    assert document["complete"] and document["steps"] == max(facts["step"], 20)  # an epoch


@pytest.mark.long("as without a picture")
def test_the_picture_is_of_the_whole_run(begin, tmp_path):
    """The command that resumes a run is the same, and refuses to replace a picture."""
    folder, picture = tmp_path / "run", tmp_path / "run.svg"
    command = ["train", "mlp", "--data", IMAGES, "--hidden", "8", "--batch", "10", "--checkpoint", str(folder),
               "--resume", "--checkpoint-every", "5", "--plot", str(picture)]  # fmt: skip
    job = begin(*command, "--epochs", "1000000")
    until((folder / "latest").exists, job)
    job.send_signal(signal.SIGUSR1)
    code, out, err = ended(job)
    assert code == STOPPED and not picture.exists() and "picture in" not in out, err
    steps = int((folder / "latest").read_text().removeprefix("step-"))
    code, out, err = ended(begin(*command, "--epochs", str(steps + 1)))  # an epoch has a step or more
    assert code == 0 and picture.exists() and f"picture in {picture}" in out, err


def test_a_seed_below_zero_is_refused_before_data_is_drawn(alone):
    done = alone(["-m", "mpicomp.cli"], "train", "mlp", "--data", "synthetic:train=40,test=20", "--seed", "-1",
                 MPICOMP_ALLOW_SINGLETON="1")  # fmt: skip
    assert done.code == 1 and "Error: seed must be at least 0, got -1" in done.err and "Traceback" not in done.err


def test_a_compression_warm_up_needs_a_scheme_that_has_one(alone):
    done = alone(["-m", "mpicomp.cli"], "train", "mlp", "--data", "synthetic:train=40,test=20", "--batch", "10",
                 "--compress-warmup", "1", "--scheme", "accordion:")  # fmt: skip
    assert done.code == 1 and done.err.count("\n") == 1
    assert done.err.endswith("--compress-warmup must be 0 for a scheme without the option warmup, got 1 for accordion: "
                             "leave it out\n")


@pytest.mark.parametrize("words", [
    ("mlp", "--data", "synthetic:train=40,test=20", "--batch", "10", "--lr", "1e30"),
    ("logreg", "--data", "synthetic:n=60,d=10", "--step-size", "1e200", "--shift", "1e200"),
], ids=lambda words: words[0])  # fmt: skip
def test_a_training_that_diverges_advises_an_option(alone, words):
    """The library's advice is an argument that no command has."""
    done = alone(["-m", "mpicomp.cli"], "train", *words, "--epochs", "9", MPICOMP_ALLOW_SINGLETON="1")
    error = next(line for line in done.err.splitlines() if line.startswith("Error: "))
    assert done.code == 1 and error.endswith(
        "error memory is untouched. If training diverged, take a smaller --lr or --step-size")


IMAGES = "synthetic:train=40,test=20"
APPS = {
    "logreg": ["--data", "synthetic:n=60,d=10"], "ef-gdstar": ["--data", "synthetic:n=60,d=10"],
    "mlp": ["--data", IMAGES, "--batch", "10"], "language": ["--data", "synthetic:tokens=2000"],
    "vision": ["--data", IMAGES, "--batch", "10"], "recommend": ["--data", "synthetic:users=200", "--batch", "100"],
}  # fmt: skip
LONG = {app: pytest.mark.long("as language") for app in ("vision", "recommend")}


@pytest.mark.parametrize("app", [pytest.param(app, marks=LONG.get(app, ())) for app in APPS])
def test_every_app_says_where_it_is_on_stderr_also_with_json(alone, app):
    if app in ("language", *LONG):
        pytest.importorskip("torch")
    done = alone([str(Path(__file__).with_name("impatient.py"))], "train", app, *APPS[app], "--epochs", "2", "--json",
                 MPICOMP_ALLOW_SINGLETON="1")  # fmt: skip
    assert done.code == 0, done.err
    assert json.loads(done.out)["complete"]
    assert any(line.startswith("# ") for line in done.err.splitlines()), done.err


def test_progress_between_evaluations_names_the_steps_done(monkeypatch, capsys):
    monkeypatch.setattr(console, "width_of", lambda stream: None)
    monkeypatch.setattr(console, "PLAIN_PROGRESS_S", 0.001)
    with console.SteadyProgress() as progress:
        progress("step 10/40: gap 3", 0.25)
        progress.step = 12
        while "12" not in (printed := capsys.readouterr().err):
            time.sleep(0.001)
    assert "#  25% step 10/40: gap 3; 12 steps done\n" in printed


def test_heat(one_job, command, tmp_path):
    """Runs with a trace; bad options are one error for the whole job, before anything runs."""
    quick = ("train", "heat", "--grid", "8", "--steps", "4", "--every", "2")
    done = one_job(command, *quick, "--trace", str(tmp_path / "run.h5"))
    assert done.code == 0, done.err
    assert "the error bound changes the mean by" in done.out and (tmp_path / "run.h5").exists()
    for wrong, text in ((("--bound", "0"), "bound must be a positive finite number, got 0"),
                        (("--every", "5"), "every must be at most the number of steps, 4, got 5"),
                        (("--trace", str(tmp_path / "run.h5")), "exists already")):
        refused = one_job(command, *quick, *wrong)
        assert refused.code == 1 and refused.err.count(text) == 1, refused.err
        assert refused.err.count("Error: ") == 1 and not refused.out
