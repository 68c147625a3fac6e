"""Output into a folder that cannot be written: one line names it before any work, for root and other users."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from launching import COMMAND, run

from mpicomp.cli.trace.command import trace

NOT_WRITABLE = Path("/sys")  # a kernel's own: not even root makes files there
BENCH = ["bench", "--sizes", "1K", "--iters", "2"]
TRAIN = ["train", "logreg", "--data", "synthetic:n=60,d=10", "--epochs", "1"]


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


# -- an output that is an input


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
