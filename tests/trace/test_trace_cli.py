"""`mpicomp trace` as a user sees it: tables, JSON, exit codes."""

import json
import os
import re

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from mpicomp.cli.trace.command import trace
from mpicomp.trace import recover
from mpicomp.trace.units import duration, nbytes, sparkline


def run(*arguments, **environment):
    return CliRunner(env=environment).invoke(trace, [str(argument) for argument in arguments])


@pytest.mark.parametrize("width", [30, 40, 60, 80, 200])
def test_report(planted_trace, width):
    result = run("report", planted_trace, COLUMNS=str(width))
    assert result.exit_code == 0, result.output
    for words in ("3 on 2 nodes", "exchange", "median lateness", "100 B per rank and step", "53.3 x less", "loss"):
        assert words in result.output
    assert "\x1b" not in result.output and "…" not in result.output
    table = [line for line in result.output.splitlines() if line.startswith(("exchange", "phase", "loss"))]
    assert max(map(len, table)) <= min(width, 80)


def test_words_stay_whole_on_a_narrow_terminal(planted_trace):
    shown = run("breakdown", planted_trace, COLUMNS="80", FORCE_COLOR="1").output
    assert "\x1b" in shown  # as on a terminal
    plain = run("breakdown", planted_trace, COLUMNS="80").output
    for text in (re.sub(r"\x1b\[[0-9;]*m", "", shown), plain):
        rows = text.splitlines()
        assert any(row.startswith("exchange communication ") for row in rows)
        assert max(map(len, rows)) <= 80


def test_long_facts_go_on_below_where_they_began(planted_trace):
    shown = run("report", planted_trace, COLUMNS="60", FORCE_COLOR="1").output
    rows = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    at = next(number for number, row in enumerate(rows) if row.startswith("imbalance"))
    assert rows[at + 1].startswith(" " * 15) and max(map(len, rows[at : at + 2])) <= 60


def test_long_names_stand_apart_from_their_texts(planted_trace):
    with h5py.File(planted_trace, "a") as file:
        file.attrs["environment"] = np.bytes_(json.dumps({"OMPI_COMM_WORLD_SIZE": "3"}))
    assert "OMPI_COMM_WORLD_SIZE 3" in run("info", planted_trace).output.splitlines()


def test_steps_to_skip_are_not_called_missing(planted_trace):
    assert "no step after those to skip" in run("efficiency", planted_trace, "--skip", "10").output


def test_an_open_range_of_steps_is_refused(planted_trace, tmp_path):
    for steps in ("4:", ":4"):
        refused = run("export", planted_trace, "--format", "csv", "-o", tmp_path / "out.csv", "--steps", steps)
        assert refused.exit_code != 0 and "expected steps as 10:12 or 10" in refused.output
    assert not (tmp_path / "out.csv").exists()


def test_unknown_figures_of_a_scheme_have_no_unit(plant, spool, tmp_path):
    """One rank sends nothing: there is no ratio."""
    plant(0).events(("step", 0, 100, 0, 400, 0, 0)).done()
    assert run("recover", spool, "-o", tmp_path / "out.h5").exit_code == 0
    shown = run("codec", tmp_path / "out.h5").output
    assert "less by" in shown and "- x" not in shown


@pytest.mark.parametrize("command", ["info", "summary", "report", "validate"])
def test_json(planted_trace, command):
    result = run(command, planted_trace, "--json")
    assert result.exit_code == 0 and json.loads(result.output)


@pytest.mark.parametrize(("steps", "shown"), [((7,), "7"), ((10, 11), "10 11")])
def test_steps_below_a_narrow_heatmap_stay_apart(plant, spool, tmp_path, steps, shown):
    for rank in range(3):
        plant(rank).events(*(("step", 100 * n, 100 * n + 50, n) for n in steps)).done()
    recover(spool, tmp_path / "run.h5")
    assert run("heatmap", tmp_path / "run.h5").output.splitlines()[-2].strip() == shown


def test_info_and_summary(planted_trace):
    assert "node0, node1" in run("info", planted_trace).output
    assert "scalecom:chunk=4" in run("summary", planted_trace, COLUMNS="120").output
    narrow = run("summary", planted_trace, COLUMNS="80").output
    assert "excha" in narrow and "sent" in narrow and max(map(len, narrow.splitlines())) <= 80
    title, *ranks, clocks = run("summary", planted_trace, "--by", "rank").output.splitlines()
    assert title.startswith("rank") and len(ranks) == 3 and "one rank's own clock" in clocks
    wrong = run("summary", planted_trace, "--by", "colour")
    assert wrong.exit_code == 2 and "choose from kind" in wrong.output


def test_recover(plant, spool, tmp_path):
    plant(0).events(("compute", 0, 1, 0)).done()
    plant(2).events(("compute", 0, 1, 0))
    out = tmp_path / "out.h5"
    result = run("recover", spool, "-o", out)
    assert result.exit_code == 0 and "2 events of 3 ranks" in " ".join(result.output.split())
    assert "missing: rank 1" in result.output and "killed: rank 2" in result.output
    again = run("recover", spool, "-o", out)
    assert again.exit_code == 1 and "exists already" in again.output
    forced = run("recover", spool, "-o", out, "--force", "--json")
    assert json.loads(forced.output)["status"] == {"1": "missing", "2": "killed"}
    assert "INCOMPLETE" in run("report", out).output


def test_validate(planted_trace):
    assert run("validate", planted_trace).output.strip().endswith("valid")
    with h5py.File(planted_trace, "r+") as file:
        del file["steps/step"]
    result = run("validate", planted_trace)
    assert result.exit_code == 2 and "/steps/step is missing" in result.output


@pytest.mark.parametrize("command", ["info", "summary", "report", "validate"])
def test_errors_are_one_line(tmp_path, command):
    (tmp_path / "bad.h5").write_bytes(b"nothing")
    for name in ("bad.h5", "missing.h5"):
        result = run(command, tmp_path / name)
        assert result.exit_code == 1 and result.output.startswith("Error: ") and result.output.count("\n") == 1


def test_another_hdf5_file_is_called_that(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["bench/algorithm"] = ["ring"]
    result = run("info", tmp_path / "other.h5")
    assert result.exit_code == 1 and result.output.endswith("other.h5: an HDF5 file, but no trace: it has no /events\n")


def test_of_a_run_that_was_killed_one_is_told_what_to_do(tmp_path):
    (tmp_path / "killed.h5.spool").mkdir()
    result = run("report", tmp_path / "killed.h5")
    command = f"mpicomp trace recover {tmp_path}/killed.h5.spool -o {tmp_path}/killed.h5"
    assert result.exit_code == 1 and result.output.rstrip().endswith(command)


def test_a_hostile_title_cannot_drive_the_terminal(planted_trace):
    with h5py.File(planted_trace, "r+") as file:
        file.attrs["title"] = np.bytes_("\x1b[2J[red]boo[/nonsense]")
        file.attrs["environment"] = np.bytes_(json.dumps({"A": "\x1b]0;x\x07"}))
    for command in ("info", "report"):
        result = run(command, planted_trace)
        assert result.exit_code == 0 and "\x1b" not in result.output and "[/nonsense]" in result.output


def test_units():
    assert [duration(t) for t in (3, 4_500, 1.25e6, 2e9)] == ["3 ns", "4.5 us", "1.25 ms", "2 s"]
    assert [nbytes(n) for n in (0, 12, 4_000, 2.5e9)] == ["-", "12 B", "4 kB", "2.5 GB"]


def test_sparkline():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, None, 1]) == "▁ ▁"
    assert sparkline([None]) == sparkline([]) == ""
    assert len(sparkline(range(10_000))) == 20 and sparkline(range(10_000))[-1] == "█"


def refused(kept, *arguments):
    """In one line; the file that is read stays as it was."""
    before = kept.read_bytes()
    result = run(*arguments)
    assert result.exit_code == 1 and "itself: give another path for the output" in result.output, result.output
    assert result.output.count("\n") == 1 and kept.read_bytes() == before


@pytest.mark.parametrize("words", [["report"], ["export", "--format", "csv"], ["export", "--format", "perfetto"]],
                         ids=lambda words: words[-1])
def test_a_recording_is_not_replaced_by_what_is_made_of_it(planted_trace, words):
    """By none of its names."""
    hard, soft = planted_trace.with_name("hard.csv"), planted_trace.with_name("soft.csv")
    os.link(planted_trace, hard)
    soft.symlink_to(planted_trace)
    roundabout = planted_trace.parent / ".." / planted_trace.parent.name / planted_trace.name
    for output in (planted_trace, roundabout, hard, soft):
        refused(planted_trace, *words, planted_trace, "-o", output, "--force")
    refused(planted_trace, *words, soft, "-o", planted_trace, "--force")
    assert run(*words, planted_trace, "-o", planted_trace.with_name("other.csv"), "--force").exit_code == 0


def test_nor_is_a_part_of_one_or_one_by_a_picture(planted_trace):
    folder = planted_trace.with_name("run.h5.d")
    folder.mkdir()
    part = planted_trace.rename(folder / "part0.h5")
    for given in (folder, planted_trace):
        refused(part, "report", given, "-o", part, "--force")
    picture = part.rename(folder / "run.png")
    refused(picture, "heatmap", picture, "--png", picture, "--force")


def test_nor_is_a_journal_by_its_recovery(planted_trace, spool):
    journal = next(spool.iterdir())
    refused(journal, "recover", spool, "-o", journal, "--force")
    refused(journal, "recover", journal, "-o", journal, "--force")
