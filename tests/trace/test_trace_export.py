"""Exports say what the trace says, in the structure that the other tools expect, and replace nothing."""

import csv
import gzip
import importlib.util
import json
import os
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import mpicomp.trace
from mpicomp.cli.trace.command import trace as command
from mpicomp.cli.trace.export import SUFFIXES
from mpicomp.errors import InvalidArgument, MissingExtra
from mpicomp.trace import export, exporting, open_trace

FORMATS = [name for name in SUFFIXES if name != "parquet"]
HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None


def run(*arguments):
    return CliRunner().invoke(command, ["export", *map(str, arguments)])


def text_of(output):
    data = output.read_bytes()
    return (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode()


def events_of(path):
    """The planted events by name, in the order of the file."""
    with open_trace(path) as trace:
        events = trace.events()
        events["kind"] = np.array(trace.vocabulary("kind"))[events["kind"]]
    return events


SHIFT = -10**9  # of rank 1's clock, by which its events come first


@pytest.fixture
def shifted(plant, tmp_path):
    """Two ranks on two hosts, a second apart; random times and sizes, so that nothing is right by luck."""
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    rng = np.random.default_rng(seed)
    plant.run = {**plant.run, "n_ranks": 2}
    for rank in range(2):
        own = plant(rank, host=f"node{rank}", clock=f"kernel{rank}", offsets=[(0, rank * SHIFT, 400)])
        times = np.cumsum(rng.integers(1, 10**6, 40)) + 10**12
        for step in range(20):
            sizes = (4 * int(rng.integers(1, 10**6)), *rng.integers(1, 10**5, 2).tolist())
            own.events(("exchange", int(times[2 * step]), int(times[2 * step + 1]), step, *sizes))
        own.done()
    mpicomp.trace.recover(tmp_path / "run.h5.spool", tmp_path / "run.h5")
    return tmp_path / "run.h5"


@pytest.mark.parametrize("form", ["chrome", "perfetto"])
def test_the_structure_of_a_timeline(shifted, form):
    assert run(shifted, "--format", form).exit_code == 0
    output = shifted.with_name("run" + SUFFIXES[form])
    text = text_of(output)
    document = json.loads(text)
    assert document["otherData"]["clock_uncertainty_ns"] == 200
    by_phase = {}
    for entry in document["traceEvents"]:
        assert {"ph", "pid", "tid", "name"} <= entry.keys() and isinstance(entry["pid"], int)
        by_phase.setdefault(entry["ph"], []).append(entry)
    assert set(by_phase) == {"M", "X", "C"}
    names = {entry["pid"]: entry["args"]["name"] for entry in by_phase["M"] if entry["name"] == "process_name"}
    assert names == {0: "rank 0 on node0", 1: "rank 1 on node1"}
    events = events_of(shifted)
    begin = events["t_start"] + events["rank"].astype(np.int64) * SHIFT
    slices = by_phase["X"]
    assert [entry["pid"] for entry in slices] == events["rank"].tolist()
    np.testing.assert_allclose([entry["ts"] for entry in slices], (begin - begin.min()) / 1000, atol=1e-3)
    np.testing.assert_allclose([entry["dur"] for entry in slices], (events["t_end"] - events["t_start"]) / 1000)
    assert {entry["name"] for entry in slices} == {"exchange"} and {entry["cat"] for entry in slices} == {"ring"}
    assert [entry["args"]["nbytes_dense"] for entry in slices] == events["nbytes_dense"].tolist()
    for rank in (0, 1):
        counted = [entry["args"] for entry in by_phase["C"] if entry["pid"] == rank]
        for name in ("nbytes_sent", "nbytes_recv"):
            own = events[name][events["rank"] == rank]
            assert [args[name] for args in counted] == np.cumsum(own).tolist()


def test_bytes_are_counted_once_and_those_of_steps_too(plant, tmp_path):
    rows = [("step", 0, 100, 0, 400, 30, 30), ("exchange", 10, 50, 0, 400, 0, 0), ("exchange", 110, 150, 0, 40, 4, 5),
            ("collective", 120, 140, 0, 40, 4, 5), ("exchange", 210, 250, 1, 40, 7, 7)]  # fmt: skip
    plant.run = {**plant.run, "n_ranks": 1}
    plant(0).events(*rows).done()
    mpicomp.trace.recover(tmp_path / "run.h5.spool", tmp_path / "run.h5")
    export(tmp_path / "run.h5", tmp_path / "run.json", "chrome")
    entries = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert [tuple(entry["args"].values()) for entry in entries if entry["ph"] == "C"] == [(30, 30), (34, 35), (41, 42)]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_rows(shifted, form):
    output = shifted.with_name("rows." + form)
    assert export(shifted, output, form) == 40
    with output.open() as file:
        rows = list(csv.DictReader(file)) if form == "csv" else [json.loads(line) for line in file]
    events = events_of(shifted)
    for name in ("rank", "step", "seq", "t_start", "t_end", "nbytes_dense", "nbytes_sent", "nbytes_recv"):
        assert [int(row[name]) for row in rows] == events[name].tolist()
    assert {row["kind"] for row in rows} == {"exchange"} and {row["scheme"] for row in rows} == {"scalecom:chunk=4"}
    assert [int(row["t_reference"]) - int(row["t_start"]) for row in rows] == [SHIFT * int(row["rank"]) for row in rows]


@pytest.mark.skipif(not HAS_PYARROW, reason="pyarrow is not installed (pip install 'mpicomp[parquet]')")
def test_parquet(shifted):
    import pyarrow.parquet

    output = shifted.with_name("rows.parquet")
    assert export(shifted, output, "parquet") == 40
    table, events = pyarrow.parquet.read_table(output), events_of(shifted)
    assert table.schema.field("t_start").metadata == {b"units": b"ns"}
    for name in ("rank", "t_start", "nbytes_sent"):
        assert table[name].to_pylist() == events[name].tolist()
    assert set(table["kind"].to_pylist()) == {"exchange"}


def test_parquet_without_pyarrow_names_the_extra(shifted, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"mpicomp\[parquet\]"):
        export(shifted, shifted.with_name("x.parquet"), "parquet")
    result = run(shifted, "--format", "parquet")
    assert result.exit_code == 1 and "mpicomp[parquet]" in result.output
    assert not list(shifted.parent.glob("*parquet*"))


def test_some_ranks_and_steps(shifted):
    output = shifted.with_name("some.jsonl")
    result = run(shifted, "--format", "jsonl", "-o", output, "--ranks", "1", "--steps", "3:5", "--json")
    assert json.loads(result.output) == {"path": str(output), "format": "jsonl", "n_events": 3}
    rows = [json.loads(line) for line in output.open()]
    assert [(row["rank"], row["step"]) for row in rows] == [(1, 3), (1, 4), (1, 5)]


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_chosen_is_still_a_whole_file(shifted, form):
    output = shifted.with_name("none")
    assert export(shifted, output, form, steps=(900, 901)) == 0
    if form in ("chrome", "perfetto"):
        assert json.loads(text_of(output))["traceEvents"] == []


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_is_replaced_silently(shifted, form):
    output = shifted.with_name("run" + SUFFIXES[form])
    output.write_bytes(b"precious")
    result = run(shifted, "--format", form)
    assert result.exit_code == 1 and "exists already" in result.output and output.read_bytes() == b"precious"
    assert run(shifted, "--format", form, "--force").exit_code == 0 and output.read_bytes() != b"precious"


def test_a_failed_export_leaves_nothing(shifted, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(exporting.FORMATS, "csv", full)
    assert run(shifted, "--format", "csv").exit_code == 1
    assert not list(shifted.parent.glob("*csv*"))


@pytest.mark.parametrize(
    "arguments, said",
    [(["--ranks", "2"], "ranks must be in 0..1"), (["--ranks", "x"], "expected ranks as"),
     (["--ranks", "3-1"], "expected ranks as"), (["--steps", "5:3"], "expected steps as"), ([], "Missing option")],
)  # fmt: skip
def test_bad_choices(shifted, arguments, said):
    form = ["--format", "csv"] if arguments else []
    result = run(shifted, *form, *arguments)
    assert result.exit_code in (1, 2) and said in result.output and not list(shifted.parent.glob("*csv*"))


def test_an_unknown_format(shifted):
    with pytest.raises(InvalidArgument, match="perfetto, chrome"):
        export(shifted, shifted.with_name("x"), "vampir")


def test_a_folder_of_parts(shifted):
    spool = shifted.with_name("run.h5.spool")
    mpicomp.trace.recover(spool, shifted.with_name("many.h5"), max_events=1)
    one, many = shifted.with_name("one.csv"), shifted.with_name("many.csv")
    assert export(shifted, one, "csv") == export(shifted.with_name("many.h5.d"), many, "csv") == 40
    assert one.read_text() == many.read_text()
