"""Output into a folder that cannot be written: one line names it before any work, for root and other users."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from launching import COMMAND, FULL_DISK, run

from mpicomp.cli.inputs import importing
from mpicomp.cli.outcome import outcome_of
from mpicomp.cli.root import root
from mpicomp.cli.trace.command import trace
from mpicomp.simulate.machine import Machine, Wire, dump

NOT_WRITABLE = Path("/sys")  # a kernel's own: not even root makes files there
BENCH = ["bench", "--sizes", "1K", "--iters", "2"]
TRAIN = ["train", "logreg", "--data", "synthetic:n=60,d=10", "--epochs", "1"]
MLP = ["train", "mlp", "--data", "synthetic:train=40,test=20", "--hidden", "8", "--batch", "10", "--epochs", "1"]
SIMULATE = ["simulate", "--quiet", "--machine", "machine.json", "--model", "1K", "--ranks", "2"]
TUNE = ["tune", "-b", "1K", "-e", "1K", "--min-time", "0.01", "--max-time", "0.1", "-a", "ring"]


@pytest.mark.skipif(not NOT_WRITABLE.is_dir(), reason="no /sys here")
@pytest.mark.parametrize(
    ("words", "option", "name"),
    [(BENCH, "-o", "mpicomp.json"), (BENCH, "--plot", "mpicomp.png"), (TRAIN, "--trace", "mpicomp.h5"),
     (TRAIN, "--checkpoint", "mpicomp")],
)  # fmt: skip
def test_a_folder_that_takes_no_files(alone, command, words, option, name):
    before = set(os.listdir(NOT_WRITABLE))
    ended = alone([*command], *words, option, str(NOT_WRITABLE / name))
    assert ended.code == 1 and ended.out == ""
    assert ended.err.startswith("Error: ") and ended.err.count("\n") == 1, ended.err
    assert str(NOT_WRITABLE / name) in ended.err
    assert any(said in ended.err for said in ("choose another", "give another path"))
    assert set(os.listdir(NOT_WRITABLE)) == before


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("recorded") / "run.h5"
    run([sys.executable, *COMMAND, *TRAIN, "--trace", str(path)])
    return path


@pytest.mark.parametrize("words", [["report"], ["export", "--format", "csv"]], ids=lambda words: words[0])
def test_what_a_trace_cannot_be_written_to(recorded, tmp_path, monkeypatch, words):
    """Not even begun: a report takes seconds. Nothing is left behind."""
    file = tmp_path / "file"
    file.write_text("precious")
    places = [(tmp_path, "is a folder"), (tmp_path / "missing" / "x", "its folder does not exist"),
              (file / "x", "its folder does not exist")]  # fmt: skip
    places += [(NOT_WRITABLE / "x", "Permission denied")] * NOT_WRITABLE.is_dir()
    monkeypatch.setattr("mpicomp.trace.page.analysis", None)
    monkeypatch.setattr("mpicomp.trace.exporting.open_trace", None)
    for path, why in places:
        result = CliRunner().invoke(trace, [*words, str(recorded), "-o", str(path)])
        assert result.exit_code == 1, result.output
        assert result.output.startswith("Error: ") and result.output.count("\n") == 1
        assert str(path) in result.output and why in result.output and "give a" in result.output
    assert os.listdir(tmp_path) == ["file"] and file.read_text() == "precious"


@pytest.mark.parametrize("words", [["report"], ["export", "--format", "csv"]], ids=lambda words: words[0])
def test_a_disk_that_is_full(recorded, words):
    """A file size limit stands in for a full disk: both raise the same error but for its name."""
    output = recorded.with_name("x")
    limited = ("import resource, sys; from mpicomp.cli.trace.command import trace\n"
               "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); trace(sys.argv[1:])")  # fmt: skip
    ended = run([sys.executable, "-c", limited, *words, str(recorded), "-o", str(output)])
    assert ended.code == 1 and ended.out == ""
    assert ended.err == f"Error: cannot write {output}: File too large; make room there or give another path\n"
    assert os.listdir(output.parent) == [recorded.name]


@pytest.mark.parametrize(("words", "option", "name", "printed"), [
    ([*MLP, "--json"], "--plot", "run.svg", "mpicomp-train-mlp"),
    (TRAIN, "--trace", "run.h5", "steps in"), ([*TRAIN, "--json"], "--trace", "run.h5", "mpicomp-train-logreg"),
    (["train", "heat", "--grid", "8", "--steps", "4", "--every", "2"], "--trace", "run.h5", "steps of both copies"),
    (SIMULATE, "--plot", "run.svg", "speed-up"), ([*SIMULATE, "--json"], "--plot", "run.svg", "mpicomp-simulation"),
    (BENCH, "--output", "run.json", "noise: "),
])  # fmt: skip
def test_a_report_is_printed_also_if_a_file_cannot_be_written_at_the_end(
    alone, tmp_path, monkeypatch, words, option, name, printed
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    wire = Wire(1e-5, 1e9)
    (tmp_path / "machine.json").write_text(json.dumps(dump(Machine(wire, wire))))
    ended = alone(FULL_DISK, *words, option, name)
    assert ended.code == 1 and printed in ended.out and f"in {name}" not in ended.out
    assert "--json" not in words or json.loads(ended.out)["format"] == printed
    errors = [line for line in ended.err.splitlines() if "Error: " in line]
    assert len(errors) == 1 and f"cannot write {tmp_path / name if name.endswith('.h5') else name}" in errors[0]
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(("words", "option", "printed"), [
    (TUNE, "--output", "ranks per node: "), ([*TUNE, "--json"], "--output", "mpicomp-tuning"),
    (MLP, "--plot", "evaluations"),
])  # fmt: skip
def test_the_same_on_several_ranks(one_job, tmp_path, words, option, printed):
    path = tmp_path / "file.svg"
    ended = one_job(FULL_DISK, *words, option, str(path))
    assert ended.code == 1 and printed in ended.out and str(path) not in ended.out
    assert "--json" not in words or json.loads(ended.out)["format"] == printed
    assert ended.err.count(f"Error: rank 0: cannot write {path}: No space left on device; make room there") == 1
    assert ended.err.count("Error: ") == 1 and not path.exists()


@pytest.mark.parametrize(("words", "printed"), [
    (MLP, "evaluations"), (TRAIN, "steps in"), ([*MLP, "--json"], "mpicomp-train-mlp"),
])  # fmt: skip
def test_a_report_is_printed_also_if_the_last_checkpoint_fails(alone, tmp_path, words, printed):
    ended = alone(FULL_DISK, *words, "--checkpoint", str(tmp_path / "run"))
    assert ended.code == 1 and printed in ended.out
    assert "--json" not in words or json.loads(ended.out)["format"] == printed
    assert ended.err.count("Error: ") == 1 and f"Error: rank 0: cannot write {tmp_path / 'run'}" in ended.err


def test_a_full_standard_output(recorded):
    ended = run(["bash", "-c", f"{sys.executable} -m mpicomp.cli trace report {recorded} > /dev/full"])
    assert (ended.code, ended.err) == (1, "Error: reading or writing: No space left on device\n")


# -- an output that is an input, or another output


def refused(words, kept, output=None):
    """In one line, before any work; the file that is read stays as it was."""
    before = kept.read_bytes()
    ended = run([sys.executable, *COMMAND, *map(str, words), "--force"])
    assert ended.code == 1 and ended.out == ""
    said = f"{output or kept} is the input {kept} itself: give another path for the output\n"
    assert ended.err.replace("rank 0: ", "") == f"Error: {said}"
    assert kept.read_bytes() == before


def test_a_benchs_inputs_are_not_replaced(tmp_path):
    result, other, link = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.csv"
    for path in (result, other):
        assert run([sys.executable, *COMMAND, *BENCH, "-o", str(path)]).code == 0
    link.symlink_to(result)
    refused(["bench", "merge", other, result, "-o", result], result)
    refused(["bench", "merge", other, result, "-o", link], result, link)
    refused([*BENCH, "--baseline", result, "-o", result], result)


def test_a_machines_description_is_not_replaced(tmp_path):
    machine = tmp_path / "machine.svg"
    wire = {"latency": 1e-5, "bandwidth": 1e9, "overhead": 1e-6}
    machine.write_text(json.dumps({"format": "mpicomp-machine", "version": 1, "ranks_per_node": 1, "within": wire,
                                   "between": wire, "kernels": {}}))
    simulate = ["simulate", "--machine", machine, "--model", "1K", "--ranks", "2"]
    assert run([sys.executable, *COMMAND, *map(str, simulate)]).code == 0
    refused([*simulate, "--plot", machine], machine)


@pytest.mark.parametrize(("words", "options"), [
    (MLP, ("--plot", "--trace")), (MLP, ("--checkpoint", "--trace")), (BENCH, ("--output", "--plot")),
    (["tune"], ("--output", "--machine")), (["bench", "merge", "a.json", "b.json"], ("--output", "--plot")),
])  # fmt: skip
@pytest.mark.parametrize("place", ["folder/run.png", "link/../folder/run.png", "{}/link/run.png"])
def test_two_outputs_are_not_one_file(tmp_path, monkeypatch, words, options, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    places = {options[0]: "folder/run.png", options[1]: place.format(tmp_path)}
    given = [word for pair in places.items() for word in pair]
    outcome = outcome_of(lambda: root.main([*words, *given, "--force"], prog_name="mpicomp", standalone_mode=False))
    assert outcome.code == 1 and not [*(tmp_path / "folder").iterdir()]
    said = [f"{one} and {other} must be different paths, got {path} for both: give another path for one of them"
            for one, other, path in ((*options, places[options[1]]), (*reversed(options), places[options[0]]))]
    assert outcome.text.removeprefix("Error: ") in said


@pytest.mark.parametrize(("words", "name"), [
    (["bench"], "--output"), (["bench"], "--plot"), (["bench"], "--baseline"),
    (["bench", "merge", "a.json", "b.json"], "--output"), (["tune"], "--machine"), (MLP, "--trace"),
    (["bench", "-a", "ring"], "--algorithm"), (["bench"], "--scheme"), (["bench"], "--sizes"), (["bench"], "--bound"),
    (["bench", "-e", "1K"], "--min-bytes"), (["bench"], "--step-bytes"), (["bench"], "--data"), (MLP, "--optimizer"),
    (["tune"], "--algorithm"), (["advise", "--model", "1K"], "--scheme"), (["advise", "--model", "1K"], "--compute"),
    (SIMULATE, "--algorithm"), (SIMULATE, "--ratio"), (SIMULATE, "--jitter"), (["check-part", "mine:Part"], "--scheme"),
    (["trace", "stragglers", "run.h5"], "--kind"),
])  # fmt: skip
def test_an_empty_text_is_not_none(words, name):
    """A shell variable that is not set gives one; its absence would be noticed only at the end of the work."""
    outcome = outcome_of(lambda: root.main([*words, name, ""], prog_name="mpicomp", standalone_mode=False))
    assert outcome.code == 1
    assert outcome.text == f"Error: {name} must have a value, got '': give one, or leave out {name}"


def test_a_required_option_cannot_be_left_out():
    outcome = outcome_of(lambda: root.main(["advise", "--model", " "], prog_name="mpicomp", standalone_mode=False))
    assert outcome.text == "Error: --model must have a value, got ' ': give one"


def test_an_empty_text_of_a_configuration_is_not_none(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[bench]\nalgorithm = ['ring', ',']\n")
    words = ["--config", str(file), "bench"]
    outcome = outcome_of(lambda: root.main(words, prog_name="mpicomp", standalone_mode=False))
    assert outcome.text == "Error: --algorithm must have a value, got ',': give one, or leave out --algorithm"


@pytest.mark.parametrize("words", [["info"], ["bench", "-a", "native", "-n", "1", "--sizes", "1K", "-o", "x.json"],
                                   ["check-part", "mine:Part"]])  # fmt: skip
def test_a_removed_working_folder_is_named(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    outcome = outcome_of(lambda: root.main(words, prog_name="mpicomp", standalone_mode=False))
    assert outcome.code == 1 and outcome.text.startswith("Error: the working folder was removed: ")


def test_a_module_may_change_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "wanderer.py").write_text("import os\nos.chdir('/')\nPart = 7\n")
    monkeypatch.chdir(tmp_path)
    with importing("wanderer:Part") as part:
        assert part == 7
    assert str(tmp_path) not in sys.path


def test_data_are_not_replaced(tmp_path):
    data = tmp_path / "data.png"
    data.write_text("+1 1:1\n-1 2:1\n" * 9)
    words = ["train", "logreg", "--data", data, "--epochs", "1"]
    assert run([sys.executable, *COMMAND, *map(str, words)]).code == 0
    refused([*words, "--trace", data], data)
    folder = tmp_path / "images"
    folder.mkdir()
    image = data.rename(folder / data.name)
    refused(["train", "mlp", "--data", folder, "--plot", image], image)
