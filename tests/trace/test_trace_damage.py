"""Cut and damaged files, others in every run: an error in one line, or an answer that is right."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpicomp.cli.trace.command import trace
from mpicomp.trace.journal import Journal

READERS = ("info", "summary", "report", "validate")
CASES = 60
LONG = pytest.mark.long("many more damaged copies")


def tried(how, command, path, cases=CASES):
    """Return the command's output on damaged copies of ``path``; fail if it crashed."""
    seed = int.from_bytes(os.urandom(4), "little")
    arguments = [how, command, path, seed, cases]
    print("to repeat: damage.py", *arguments)
    program = Path(__file__).with_name("damage.py")
    done = subprocess.run(
        [sys.executable, program, *map(str, arguments)], capture_output=True, text=True, timeout=800
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{lines[-1:]}: {done.returncode} {done.stderr}"
    said = [line for line in lines if "case" in line]
    assert len(said) > cases // 2
    for line in said:
        assert line["exception"] is None, line["case"] + "\n" + line["exception"]
        assert line["exit"] in (0, 1, 2) and "Traceback" not in line["printed"]
        if line["exit"] == 1:
            assert line["printed"].startswith("Error: ") and line["printed"].count("\n") == 1, line
    return said


@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", [READERS[0], *(pytest.param(one, marks=LONG) for one in READERS[1:])])
def test_every_cut_file_is_an_error(planted_trace, command):
    for line in tried("prefixes", command, planted_trace):
        assert line["exit"] == 1 and "bent" not in line["printed"], line


@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", [READERS[0], *(pytest.param(one, marks=LONG) for one in READERS[1:])])
def test_damage_never_changes_a_number(planted_trace, command):
    whole = CliRunner().invoke(trace, [command, str(planted_trace), "--json"]).output
    refused = 0
    for line in tried("random", command, planted_trace):
        refused += line["exit"] != 0
        if line["exit"] == 0 and command in ("summary", "validate"):
            assert line["printed"] == whole, line["case"]
        elif line["exit"] == 0:
            assert numbers(json.loads(line["printed"])) == numbers(json.loads(whole)), line["case"]
    assert refused > CASES // 4


def numbers(card):
    """An answer without the texts of the run card, which HDF5 keeps without a checksum."""
    if isinstance(card, dict):
        return {name: numbers(value) for name, value in card.items() if name != "environment"}
    if isinstance(card, list):
        return [numbers(value) for value in card]
    return None if isinstance(card, str) else card


@pytest.mark.timeout(900)
@LONG
@pytest.mark.parametrize("how, cases", [("prefixes", 80), ("random", 80)])
def test_recovery_uses_what_is_whole_and_names_the_rest(plant, tmp_path, how, cases):
    plant.run = {**plant.run, "n_ranks": 1, "environment": {}}
    own, ends = plant(0, offsets=[(5, 7, 11)]), []
    for batch in range(3):
        own.events(("compute", 20 * batch, 20 * batch + 5, batch), ("exchange", 20 * batch + 5, 20 * batch + 9, batch))
        ends.append(own.path.stat().st_size)
    path = own.metric("loss", 0.5, 0.25).done().path
    whole = Journal(path).events()["t_start"].tolist()
    for line in tried(how, "recover", path, min(cases, path.stat().st_size)):
        if line["exit"] == 1:
            assert "t_start" not in line and str(path.name) in line["printed"], line
            continue
        merged = json.loads(line["printed"])
        assert line["faults"] == [] and line["t_start"] == whole[: len(line["t_start"])], line["case"]
        assert merged["complete"] is False and merged["status"]["0"] in ("killed", "torn"), line["case"]
        assert merged["n_events"] == len(line["t_start"]) and merged["n_events"] in (0, 2, 4, 6)
    for count, end in zip((2, 4, 6), ends, strict=True):
        (tmp_path / path.name).write_bytes(path.read_bytes()[:end])
        assert Journal(tmp_path / path.name).events()["t_start"].tolist() == whole[:count]


@pytest.mark.parametrize(
    "tag, value",
    [
        (b"DONE", []), (b"DONE", {"reason": "bored", "n_dropped": 0}), (b"DONE", {"reason": "closed"}),
        (b"DONE", {"reason": "closed", "n_dropped": "many"}), (b"CLCK", [{}]), (b"CLCK", [{"t_local": "x"}]),
        (b"CLCK", [{"t_local": 1 << 70, "offset": 0, "rtt": 0}]), (b"LABL", [[-1, ["a"] * 5]]),
        (b"LABL", [[0, ["a"]]]), (b"LABL", [[1 << 40, ["a"] * 5]]), (b"LABL", [[0, [1, 2, 3, 4, 5]]]),
        (b"NAME", [["x", "y"]]), (b"NAME", [[0, 7]]), (b"HEAD", {}), (b"METR", "odd"),
    ],
)  # fmt: skip
def test_whole_frames_of_nonsense_are_one_line(plant, spool, tmp_path, tag, value):
    own = plant(0).events(("compute", 0, 1, 0)).metric("loss", 1.0)
    own.frame(tag, value)
    result = CliRunner().invoke(trace, ["recover", str(spool), "-o", str(tmp_path / "out.h5")])
    assert result.exit_code == 1 and result.output.startswith("Error: "), result.output
    assert own.path.name in result.output and not list(tmp_path.glob("out.h5*"))


@pytest.mark.parametrize(
    "head",
    [{}, {"rank": {}}, {"rank": {"rank": "a"}}, {"rank": {"rank": 0}}, {"run": []}, {"run": {"run_id": 3}},
     {"rank": {"rank": 0, "hostname": 5, "pid": "x", "cpus": [], "clock": 1}}, {"run": {"n_ranks": "many"}}],
)  # fmt: skip
def test_heads_of_nonsense_are_one_line(plant, spool, tmp_path, head):
    facts = {"rank": 0, "hostname": "a", "pid": 1, "cpus": "0", "clock": ""}
    from mpicomp.trace import journal

    spool.mkdir()
    whole = {"run": {**plant.run, **head["run"]} if isinstance(head.get("run"), dict) else head.get("run"),
             "rank": head.get("rank", facts)}  # fmt: skip
    journal.JournalWriter(journal.journal_path(spool, 0), whole).close()
    result = CliRunner().invoke(trace, ["recover", str(spool), "-o", str(tmp_path / "out.h5")])
    assert result.exit_code == 1 and result.output.startswith("Error: "), result.output
    assert "rank00000" in result.output and not list(tmp_path.glob("out.h5*"))
