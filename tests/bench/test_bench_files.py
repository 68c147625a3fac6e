"""Bench results as files, tables and verdicts, without MPI: planted rows, fresh random figures."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from mpicomp.bench import documents
from mpicomp.bench.compare import Baseline
from mpicomp.bench.confidence import median_interval
from mpicomp.bench.environment import Noise
from mpicomp.bench.merge_runs import merge
from mpicomp.bench.plan import DTYPES, size_range
from mpicomp.bench.plot import check_plot, plot
from mpicomp.bench.rows import closing, compression, interval
from mpicomp.bench.schema import FIELDS, full
from mpicomp.bench.timing import Facts
from mpicomp.cli import config, console
from mpicomp.cli.bench import table
from mpicomp.cli.bench.command import make_plan
from mpicomp.cli.bench.layouts import Look
from mpicomp.cli.root import root
from mpicomp.errors import CorruptFile, InvalidArgument, MissingExtra, MpicompError


def row(**given):
    """A plausible row with random figures."""
    time = given.get("t_med_us", random.uniform(1, 1e5))
    nbytes = given.get("nbytes", 4096)
    figures = {name: random.uniform(1, 1e3) for name, field in FIELDS.items() if field.kind is float}
    return full({
        **figures, "collective": "allreduce", "algorithm": "ring", "part": "step", "dtype": "float32", "op": "sum",
        "root": -1, "place": "out", "device": "cpu", "nbytes": nbytes, "count": nbytes // 4, "n_ranks": 4,
        "ci_low_us": 0.95 * time, "ci_high_us": 1.05 * time, "iters": 100, "warmup": 10, "wire_bytes": 6144,
        "wire_modelled": False, "n_wrong": 0, "ok": True, "algbw_gbs": nbytes / time / 1e3,
        "busbw_gbs": 1.5 * nbytes / time / 1e3, "ratio": None, "density": None, "break_even_gbs": None,
        "bound": None, "max_error": None, "error_limit": None, "psnr_db": None,
        "t_low_us": None, "t_high_us": None, "baseline_us": None, "change_pct": None, "vs": 1.0,
        **given, "t_med_us": time,
    })  # fmt: skip


def scheme_row(**given):
    return row(**{"algorithm": None, "scheme": "topk:density=0.01,k=5", "place": None, "op": "mean", "busbw_gbs": None,
                  "t_phase_us": {"select": 1.5, "agree": 2.5}, "ratio": 9.0, "density": 0.01, **given})  # fmt: skip


def bounded_row(**given):
    return row(**{"algorithm": "two_hops", "bound": 1e-4, "relative": True, "data": "smooth", "busbw_gbs": None,
                  "ratio": 5.5, "ran": "two_hops", "max_error": 1e-3, "error_limit": 2e-3, "psnr_db": 80.0, **given})


def document(*rows):
    return {"format": "mpicomp-bench", "version": 1, "mpi": {"name": "an MPI"}, "seed": 1,
            "ranks": [{"rank": 0, "host": "here"}], "noise": {"text": "quiet"}, "rows": list(rows)}  # fmt: skip


def saved(path: Path, *rows) -> str:
    documents.write(path, document(*rows), path.suffix)
    return str(path)


def invoke(*arguments: str, **environment: str):
    return CliRunner().invoke(root, list(arguments), env=environment, catch_exceptions=True)


# -- files


@pytest.mark.parametrize("suffix", [".json", ".csv", ".h5"])
def test_what_is_written_is_read(tmp_path, suffix):
    rows = [row(), scheme_row(), row(ok=None, n_wrong=None, ci_low_us=None), row(ok=False, n_wrong=3, regressed=True),
            bounded_row(), bounded_row(relative=False, psnr_db=None, ran="exact", reason="there is one rank")]
    read = documents.read(saved(tmp_path / f"x{suffix}", *rows))
    assert read["rows"] == rows
    if suffix != ".csv":
        assert {name: read[name] for name in ("mpi", "seed", "noise")} == {
            name: document()[name] for name in ("mpi", "seed", "noise")
        }


@pytest.mark.parametrize("column", ["part", "root", "t_avg_us"])
def test_rows_without_a_column_are_refused(tmp_path, column):
    rows = [{name: value for name, value in row().items() if name != column}]
    (tmp_path / "x.json").write_text(json.dumps(document(*rows)))
    with pytest.raises(CorruptFile, match=f"holds no result of mpicomp bench: {column} is None, expected"):
        documents.read(tmp_path / "x.json")


@pytest.mark.parametrize("name", ["x", "x.txt", "x.json.gz"])
def test_unknown_suffixes(name):
    with pytest.raises(InvalidArgument, match=r"ends in one of \.json, \.csv, \.h5"):
        documents.check_suffix(name)


@pytest.mark.parametrize(
    ("name", "text"),
    [("x.json", "{"), ("x.json", "[]"), ("x.json", '{"rows": []}'), ("x.csv", "a,b\n1,2\n"), ("x.h5", "no HDF5"),
     ("x.json", '{"format": "mpicomp-bench", "rows": [{"nbytes": 3}]}')],
)  # fmt: skip
def test_files_that_hold_no_result(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(CorruptFile, match="holds no result of mpicomp bench"):
        documents.read(tmp_path / name)


# -- baseline


def compared(before: dict, now: dict, percent: float = 10) -> dict:
    Baseline(document(before), percent, "old.json").compare([now])
    return now


def test_baseline_finds_planted_regressions():
    time = random.uniform(10, 1000)
    before = row(t_med_us=time)
    slower = compared(before, row(t_med_us=1.5 * time))
    assert slower["regressed"] is True
    assert slower["change_pct"] == pytest.approx(50) and slower["baseline_us"] == time
    assert compared(before, row(t_med_us=0.5 * time))["regressed"] is False
    assert compared(before, row(t_med_us=1.08 * time))["regressed"] is False  # less than asked about
    assert compared(before, row(t_med_us=1.5 * time), percent=60)["regressed"] is False


def test_noise_is_no_regression():
    time = random.uniform(10, 1000)
    noisy = row(t_med_us=1.5 * time, ci_low_us=time, ci_high_us=3 * time)
    assert compared(row(t_med_us=time), noisy)["regressed"] is False
    launches = row(t_med_us=time, launches=5, t_low_us=0.9 * time, t_high_us=1.6 * time)
    assert compared(launches, row(t_med_us=1.5 * time))["regressed"] is False
    assert compared(launches, row(t_med_us=2 * time))["regressed"] is True


def test_only_the_same_measurement_is_compared():
    for change in ({"nbytes": 8192}, {"n_ranks": 8}, {"dtype": "float64"}, {"algorithm": "auto"}, {"place": "in"},
                   {"bound": 1e-3}):
        assert compared(row(), row(**change))["baseline_us"] is None
    with pytest.raises(InvalidArgument, match=r"old\.json has allreduce on 4 ranks, not bcast on 4 ranks"):
        Baseline(document(row()), 10, "old.json").check_job("bcast", 4)
    with pytest.raises(InvalidArgument, match=r"old\.json has no row of this measurement"):
        Baseline(document(row()), 10, "old.json").verdict(document(row(nbytes=8192)))


def test_noise_makes_a_verdict_doubtful():
    noisy = {**document(row(t_med_us=5.0)), "noise": {"foreign_cpu_share": 0.3}}
    merged = {**noisy, "noise": {"a": {"foreign_cpu_share": 0.01}, "b": {"foreign_cpu_share": 0.3}, "c": {}}}
    for one, doubtful in ((noisy, True), (merged, True), ({**noisy, "noise": {"foreign_cpu_share": 0.02}}, False)):
        baseline = Baseline(document(row(t_med_us=5.0)), 10, "old.json")
        baseline.compare(one["rows"])
        assert ("DOUBTFUL: other processes used 30%" in baseline.verdict(one)[0]) == doubtful


def test_share_of_others():
    """Two ranks of a node used 3 + 4 of 12 busy CPU seconds in 10 seconds."""
    here = [("node", 3.0, 12.0, 10.0), ("node", 4.0, 12.0, 10.0)]
    assert Noise._of_node(here) == pytest.approx(5.0 / 10.0 / os.cpu_count())


# -- merge


def test_a_row_of_one_launch_keeps_its_own_interval():
    """Files of different sizes or ranks may be merged: no spread of launches is no certainty."""
    sizes = [document(row(nbytes=64), row(nbytes=size)) for size in (1024, 2048)]
    sizes[1]["rows"][0]["t_med_us"] += 1
    rows = merge(dict(zip("ab", sizes, strict=True)))["rows"]
    assert [one["launches"] for one in rows] == [2, 1, 1]
    for merged, own in zip(rows[1:], (sizes[0]["rows"][1], sizes[1]["rows"][1]), strict=True):
        assert interval(merged) == (own["ci_low_us"], own["ci_high_us"]) and None not in interval(merged)
        assert merged["spread_pct"] == own["spread_pct"]


def test_merge_is_the_median_of_launches():
    times = random.sample(range(100, 1000), 5)
    middle = sorted(times)[2]
    merged = merge({f"{time}.json": document(row(t_med_us=float(time)), row(t_med_us=50.0 + time, nbytes=8192))
                    for time in times})  # fmt: skip
    first, second = merged["rows"]
    assert (first["t_med_us"], first["t_low_us"], first["t_high_us"]) == (middle, min(times), max(times))
    assert first["launches"] == 5 and second["launches"] == 5 and second["t_med_us"] == middle + 50
    assert first["spread_pct"] == pytest.approx(100 * (max(times) - min(times)) / middle)
    assert first["algbw_gbs"] == pytest.approx(4096 / middle / 1e3)
    assert merged["differences"] == []


def test_merge_of_an_even_number():
    merged = merge({"a": document(row(t_med_us=100.0)), "b": document(row(t_med_us=300.0))})["rows"][0]
    assert merged["t_med_us"] == 200 and merged["algbw_gbs"] == pytest.approx(4096 / 200 / 1e3)


def test_merge_keeps_what_is_wrong():
    merged = merge({"a": document(row()), "b": document(row(ok=False, n_wrong=7))})["rows"][0]
    assert merged["ok"] is False and merged["n_wrong"] == 7


def test_merge_refuses():
    one = document(row())
    with pytest.raises(InvalidArgument, match="two launches or more, got 1"):
        merge({"a": one})
    with pytest.raises(InvalidArgument, match="hold the same launch"):
        merge({"a": one, "b": one})
    with pytest.raises(InvalidArgument, match="is a merged file"):
        merge({"a": document(row(launches=3)), "b": one})


def test_merge_says_what_differs():
    other = {**document(row()), "mpi": {"name": "another MPI"}, "ranks": [{"rank": 0, "host": "there"}]}
    first, second = merge({"a": document(row()), "b": other})["differences"]
    assert "differ in mpi" in first and "different hosts" in second


def test_merge_command(tmp_path):
    files = [saved(tmp_path / name, row(t_med_us=time), scheme_row(t_med_us=2 * time))
             for name, time in (("a.json", 100.0), ("b.csv", 120.0), ("c.h5", 110.0))]  # fmt: skip
    out = tmp_path / "merged.h5"
    result = invoke("bench", "merge", *files, "--output", str(out), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"][0]["t_med_us"] == 110
    assert documents.read(out)["rows"][0]["t_high_us"] == 120
    again = invoke("bench", "merge", *files, "--output", str(out))
    assert isinstance(again.exception, MpicompError) and "exists already" in str(again.exception)
    assert invoke("bench", "merge", *files, "--output", str(out), "--force").exit_code == 0
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(("time", "code"), [(100.0, 0), (300.0, 3)])
def test_merge_against_a_baseline(tmp_path, time, code):
    before = saved(tmp_path / "old.json", row(t_med_us=100.0))
    files = [saved(tmp_path / f"{i}.json", row(t_med_us=time + i)) for i in range(3)]
    result = invoke("bench", "merge", *files, "--baseline", before)
    assert result.exit_code == code
    assert ("SLOWER" in result.stdout) == (code == 3)
    assert ("Slower: ring at 4096 bytes" in result.stderr) == (code == 3)


def test_a_wrong_result_is_worse_than_a_slow_one(tmp_path):
    before = saved(tmp_path / "old.json", row(t_med_us=100.0))
    files = [saved(tmp_path / f"{i}.json", row(t_med_us=900.0 + i, ok=False, n_wrong=1)) for i in range(2)]
    result = invoke("bench", "merge", *files, "--baseline", before)
    assert result.exit_code == 2 and "Error: ring at 4096 bytes: 1 of 1024 elements are wrong" in result.stderr


# -- layouts


def shown(tmp_path, layout, *rows):
    files = [saved(tmp_path / f"{layout}{i}.json", *({**one, "t_max_us": i} for one in rows)) for i in range(2)]
    result = invoke("bench", "merge", *files, "--format", layout)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_csv_and_jsonl(tmp_path):
    rows = [row(t_med_us=12.5), scheme_row(t_med_us=99.0)]
    assert [float(one["t_med_us"]) for one in csv.DictReader(io.StringIO(shown(tmp_path, "csv", *rows)))] == [12.5, 99]
    assert [json.loads(line)["t_med_us"] for line in shown(tmp_path, "jsonl", *rows).splitlines()] == [12.5, 99]


def test_layout_of_nccl_tests(tmp_path):
    """Parsers of nccl-tests' output expect 13 fields per line, and count them from the right."""
    rows = [row(t_med_us=31.21, nbytes=1 << 20), row(t_med_us=29.5, nbytes=1 << 20, place="in"), row(t_med_us=5.0)]
    text = shown(tmp_path, "nccl", *rows)
    data = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    assert data[0] == ["1048576", "262144", "float", "sum", "-1", "31.21", "33.60", "50.40", "0",
                       "29.50", "35.54", "53.32", "0"]  # fmt: skip
    assert data[1][-4:] == ["N/A"] * 4 and len(data[1]) == 13
    assert re.search(r"# Out of bounds values : 0 OK", text)
    assert re.search(r"# Avg bus bandwidth\s*: [\d.]+", text)


def test_layout_of_osu(tmp_path):
    text = shown(tmp_path, "osu", row(t_avg_us=1.25, t_med_us=1.5, nbytes=64), row(t_avg_us=7.0, nbytes=4096))
    assert re.search(r"^64\s+1\.25\s+1\.50", text, re.M)
    assert re.search(r"^4096\s+7\.00", text, re.M)
    assert re.search(r"# Size\s+Avg Latency\(us\)\s+P50 Tail Lat\(us\)", text)


def test_the_table_says_when_compression_pays(tmp_path):
    text = shown(tmp_path, "table", row(), scheme_row(break_even_gbs=3.217), scheme_row(break_even_gbs=0.0, nbytes=8))
    assert "3.217" in text and "never" in text and "break-even" in text


def test_the_table_ends_with_the_least_time_and_the_best_bandwidth(tmp_path):
    figures = {"native": ((64, 2.5, 0.1), (4096, 7.0, 3.25), (1 << 20, 900.0, 2.5)),
               "auto": ((64, 63880.3, 0.0002), (4096, 1e6, 0.0004))}  # fmt: skip
    rows = [row(algorithm=name, nbytes=n, t_med_us=time, busbw_gbs=rate)
            for name, own in figures.items() for n, time, rate in own]  # fmt: skip
    rows += [row(algorithm="ring", nbytes=64), scheme_row()]
    text = shown(tmp_path, "table", *rows)
    assert "# native: 2.50 us at 64 B, busbw up to 3.250 GB/s, at 4 KiB\n" in text
    assert "# auto: 63880 us at 64 B, busbw up to <0.001 GB/s, at 4 KiB\n" in text  # no power of ten, as in the table
    assert "# ring:" not in text and "# topk:density=0.01,k=5:" not in text  # one size says it; a scheme has no busbw


def test_the_closing_sentence_is_the_geometric_mean_over_sizes():
    """Twice and eight times as fast: four times; medians known to 3 and 4 %: the ratio to 5 %, both to 5 / sqrt 2."""
    rows = [one for nbytes, times in ((64, 2), (4096, 8)) for one in (
        row(algorithm="native", nbytes=nbytes, t_med_us=80.0, ci_low_us=80 * 0.97, ci_high_us=80 * 1.03),
        row(algorithm="auto", nbytes=nbytes, t_med_us=80.0 / times, ci_low_us=76.8 / times, ci_high_us=83.2 / times))]
    assert closing(rows) == ["auto 4.00x +- 0.14 faster than native (geometric mean over 2 sizes)"]
    slow = [row(algorithm="native", t_med_us=10.0), row(algorithm="ring", t_med_us=15.0, ci_low_us=None)]
    assert closing(slow) == ["ring 1.50x slower than native (geometric mean over 1 size)"]
    assert closing([row()]) == []


def test_markdown(tmp_path):
    text = shown(tmp_path, "markdown", row(t_med_us=10.0, algorithm="native"), row(t_med_us=5.0), scheme_row())
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("| "))
    assert [cell.strip() for cell in head.strip("|").split("|")][:3] == ["size", "implementation", "time us"]
    assert len({len(line) for line in lines[lines.index(head) : lines.index(head) + 5]}) == 1
    assert "- ring 2.00x" in text and "#" not in text and "**topk:density=0.01,k=5" in text


def test_both_places_are_side_by_side(tmp_path):
    rows = [row(algorithm=name, place=place, t_med_us=time) for place, first in (("out", 10.0), ("in", 20.0))
            for name, time in (("native", first), ("ring", first + 1))]  # fmt: skip
    lines = shown(tmp_path, "table", *rows).splitlines()
    head = next(line for line in lines if line.lstrip().startswith("size "))
    assert head.split("  ").count("in: time us") == 1
    cells = [line.split() for line in lines if line.startswith(" ") and ("native" in line or "ring" in line)]
    assert [(line[2], line[3], line[10]) for line in cells] == [("native", "10.0", "20.0"), ("ring", "11.0", "21.0")]
    assert any("ring (in place) 1.05x" in line for line in lines)


@pytest.mark.parametrize("width", [40, 60, 80, 99, 120])
def test_a_wrong_result_is_seen_and_red_on_any_terminal(monkeypatch, tmp_path, capsys, width):
    for module in (console, table):
        monkeypatch.setattr(module, "width_of", lambda stream: width)
    monkeypatch.delenv("NO_COLOR", raising=False)
    one = table.Table(Look(["ring"]))
    one.begin([])
    one.add([row(ok=False, n_wrong=1), row(nbytes=64)])
    one.end(document(), [])
    wrong = next(line for line in capsys.readouterr().out.splitlines() if "WRONG" in line)
    assert "\x1b[31m" in wrong


def test_break_even_bandwidth():
    """2 ranks, 1000 dense bytes to send, 100 sent, 3 us to compute them: below 900 bytes in 3 us."""
    phases = {"select": 1.0, "agree": 50.0, "compress": 11.0, "broadcast": 10.0, "update": 1.0, "exchange": 70.0}
    found = compression(Facts(t_phase_us=phases), 1000, 100, 2, 130.0)
    assert found["break_even_gbs"] == pytest.approx(0.3)
    assert found["t_compress_us"] == 2 and found["t_local_us"] == 3 and found["ratio"] == 10
    assert compression(Facts(t_phase_us=phases), 1000, 2000, 2, 130.0)["break_even_gbs"] == 0
    for size in 1, 2:  # no link carried what one rank, or memory that ranks share, kept
        assert compression(Facts(t_phase_us=phases), 1000, 0, size, 130.0)["break_even_gbs"] is None


def test_rows_that_differ_are_told_apart(tmp_path):
    """Whatever two measurements of one implementation differ in is in front of its name."""
    files = []
    for launch in ("a.json", "b.json"):
        changes = ({}, {"collective": "bcast", "op": None}, {"dtype": "float64"}, {"cycle": 2})
        rows = [row(**change) for change in changes]
        files.append(saved(tmp_path / launch, *rows, scheme_row()))
    said = invoke("bench", "merge", *files).stdout
    for name in ("allreduce float32 sum ring", "bcast float32 ring", "allreduce float64 sum ring",
                 "allreduce float32 sum cycle 2 ring", "# allreduce float32 mean topk:"):  # fmt: skip
        assert name in said, said
    plain = [saved(tmp_path / f"{launch}.json", row(), scheme_row()) for launch in "cd"]
    alone = [saved(tmp_path / f"{launch}.json", row(n_ranks=1)) for launch in "ef"]
    assert " launches of allreduce on 1 rank\n" in invoke("bench", "merge", *alone).stdout
    assert re.search(r"\n +4 KiB  1 rank ring ", invoke("bench", "merge", *alone, *plain).stdout)
    assert re.search(r"\n +4 KiB  ring ", invoke("bench", "merge", *plain).stdout)


def test_a_phase_of_some_sizes_has_a_column(tmp_path):
    rows = [scheme_row(nbytes=nbytes, t_phase_us={"select": 1.0, **more})
            for nbytes, more in ((64, {}), (128, {"broadcast": 77.0}))]
    said = shown(tmp_path, "table", *rows)
    assert re.search(r"select  broadcast\n.* 1\.00 +-\n.* 1\.00 +77\.0\n", said), said


def test_each_scheme_has_its_own_time_alone(tmp_path):
    """Whatever two measurements of a scheme differ in, each is beside the same one on a rank alone."""
    changes = ({}, {"dtype": "float64"}, {"cycle": 2}, {"n_ranks": 8}, {"nbytes": 64})
    rows = [one for place, change in enumerate(changes) for one in (
        scheme_row(part="local", t_compress_us=1000.0 + place, t_decompress_us=2000.0 + place, **change),
        scheme_row(**change))]
    said = shown(tmp_path, "table", *rows)
    titles = next(line for line in said.splitlines() if "compress alone" in line)
    assert re.search(r" compress alone +decompress alone +select", titles), titles
    assert re.findall(r" (10\d\d)  +(20\d\d) ", said) == [(f"100{place}", f"200{place}") for place in (0, 4, 1, 2, 3)]


# -- pictures


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_pictures(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    rows = [row(nbytes=2**i, algorithm=name) for i in range(10, 14) for name in ("ring", "native")]
    picture = tmp_path / f"x{suffix}"
    plot(picture, document(*rows, scheme_row(), scheme_row(nbytes=8192)), check_plot(picture))
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix]
    assert picture.read_bytes().startswith(start)
    if suffix == ".svg":
        assert all(word in picture.read_text() for word in ("ring", "native", "busbw"))


def test_pictures_that_cannot_be(monkeypatch):
    with pytest.raises(InvalidArgument, match=r"ends in one of \.png, \.svg, \.pdf"):
        check_plot("x.jpg")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"mpicomp\[plot\]"):
        check_plot("x.png")


# -- numbers


def test_median_interval_covers_the_median():
    """95 % of intervals hold the true median: of 400, between 360 and 400."""
    random_numbers = np.random.default_rng()
    for n in (6, 20, 101):
        hits = 0
        for _ in range(400):
            low, high = median_interval(random_numbers.exponential(size=n))
            hits += low <= np.log(2) <= high
        assert hits >= 360, n
    assert median_interval(np.ones(5)) == (-np.inf, np.inf)


def test_linear_sizes():
    assert size_range(8, 32, 2, 8) == (8, 16, 24, 32)


# -- words of the command line


def test_words_of_nccl_tests(monkeypatch):
    seen = {}

    class Stop(Exception):
        pass

    def spy(**given):
        seen.update(given)
        raise Stop

    monkeypatch.setattr("mpicomp.cli.bench.command.make_plan", spy)
    result = invoke("bench", "-b", "8", "-e", "1K", "-f", "2", "-n", "20", "-w", "5", "-c", "0", "-d", "half",
                    "--op", "max", "-r", "1", "--agg_iters", "4", "-N", "3", "bcast")  # fmt: skip
    assert isinstance(result.exception, Stop), result.output
    wanted = {"min_bytes": "8", "max_bytes": "1K", "step_factor": 2.0, "iters": 20, "warmup": 5, "check": 0,
              "dtype": "half", "op": "max", "root": 1, "agg_iters": 4, "cycles": 3, "collective": "bcast"}  # fmt: skip
    assert wanted.items() <= seen.items()
    invoke("bench", "--minbytes", "16", "--maxbytes", "64", "--stepbytes", "16", "--warmup_iters", "2")
    assert (seen["min_bytes"], seen["step_bytes"], seen["warmup"]) == ("16", "16", 2)


@pytest.mark.parametrize(
    ("given", "dtypes"),
    [({}, [*DTYPES]), ({"op": "avg"}, ["float16", "float32", "float64"]), ({"scheme": ("topk",)}, ["float16", "float32",
     "float64"])],
)  # fmt: skip
def test_all_dtypes_are_those_that_the_rest_allows(given, dtypes):
    made = make_plan(**{"algorithm": ("native",), "scheme": (), "sizes": ("1K",), "min_bytes": None, "max_bytes": None,
                        "step_factor": 2.0, "dtype": "all", **given})  # fmt: skip
    assert [part.dtype for part in made.parts] == dtypes
    assert all(replace(part, dtype="all") == made for part in made.parts)


def test_integers_have_no_average():
    with pytest.raises(InvalidArgument, match="avg divides and needs a floating-point dtype, got int32"):
        make_plan(algorithm=("native",), scheme=(), sizes=("1K",), min_bytes=None, max_bytes=None, step_factor=2.0,
                  dtype="int32", op="avg")  # fmt: skip


@pytest.mark.parametrize(
    ("collective", "algorithms"), [("bcast", ("native", "auto")), ("reduce_scatter", ("native",))]
)
def test_default_algorithms(collective, algorithms):
    plan = make_plan(collective=collective, algorithm=(), scheme=(), sizes=(), min_bytes=None, max_bytes="2K",
                     step_factor=2.0, dtype="half")  # fmt: skip
    assert plan.algorithms == algorithms and plan.sizes == (1024, 2048) and plan.dtype == "float16"


# -- configuration


def configured(monkeypatch, tmp_path, text: str, *arguments: str):
    seen = {}

    class Stop(Exception):
        pass

    def spy(**given):
        seen.update(given)
        raise Stop

    monkeypatch.setattr("mpicomp.cli.bench.command.make_plan", spy)
    path = tmp_path / "run.toml"
    path.write_text(text)
    result = invoke(*(one.replace("FILE", str(path)) for one in arguments))
    return seen, result.exception, path


CONFIG = '[bench]\nalgorithm = "ring,native"\nmin-bytes = "4K"\nmax_bytes = "64K"\niters = 7\nshuffle = false\n'


@pytest.mark.parametrize("arguments", [("--config", "FILE", "bench"), ("bench", "--config", "FILE")], ids=" ".join)
def test_configuration_sets_defaults(monkeypatch, tmp_path, arguments):
    seen, _, _ = configured(monkeypatch, tmp_path, CONFIG, *arguments, "--iters", "9")
    assert seen["algorithm"] == ("ring,native",) and seen["shuffle"] is False
    assert (seen["min_bytes"], seen["max_bytes"], seen["iters"]) == ("4K", "64K", 9)  # the command line wins


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[bench]\niter = 3", "has no option 'iter' (did you mean 'iters'?)"),
        ("[bench", "is not TOML"),
        ("iters = 3", "'iters' in"),
        ("[banch]\niters = 3", "[banch] in"),
    ],
)
def test_configurations_that_cannot_be(monkeypatch, tmp_path, text, said):
    seen, error, _ = configured(monkeypatch, tmp_path, text, "--config", "FILE", "bench")
    assert not seen and isinstance(error, InvalidArgument) and said in str(error)


def test_recorded_command_line_has_the_options_of_the_file(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mpicomp", "bench", "--iters", "9"])

    @click.command()
    @click.option("-a", "--algorithm", multiple=True)
    @click.option("-b", "--min-bytes")
    @click.option("--iters", type=int)
    @click.option("--shuffle/--no-shuffle", default=True)
    @click.option("--seed", default=1)
    @click.pass_context
    def command(ctx, **options):
        config.record(ctx)

    table = {"algorithm": "ring", "min-bytes": "4K", "iters": 7, "shuffle": False}
    command.main(["--iters", "9"], standalone_mode=False, default_map=config.defaults(command, table, "[bench]"))
    assert sys.argv == ["mpicomp", "bench", "--iters", "9", "--algorithm", "ring", "--min-bytes", "4K", "--no-shuffle"]


def test_configuration_of_nested_commands(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[train.logreg]\nepocs = 3\n")
    error = invoke("--config", str(path), "train", "logreg", "--data", "x").exception
    assert isinstance(error, InvalidArgument) and "did you mean 'epochs'" in str(error)
    missing = invoke("--config", str(tmp_path / "none.toml"), "bench").exception
    assert isinstance(missing, MpicompError) and "cannot read the configuration" in str(missing)


# -- completion, colours, progress


def completed(words: str, *, shell: str = "bash") -> list[str]:
    code = "from mpicomp.cli import main; main([])"
    count = len(words.split(" ")) - 1
    environment = {**os.environ, "_MPICOMP_COMPLETE": f"{shell}_complete", "COMP_WORDS": words,
                   "COMP_CWORD": str(count)}  # fmt: skip
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("mpicomp bench bc", "plain,bcast"),
        ("mpicomp bench me", "plain,merge"),
        ("mpicomp bench --algorithm native,ri", "plain,native,ring"),
        ("mpicomp bench --scheme scale", "plain,scalecom"),
        ("mpicomp bench --dtype float1", "plain,float16"),
        ("mpicomp bench --format nc", "plain,nccl"),
    ],
)
def test_completion(words, wanted):
    assert wanted in completed(words)


@pytest.mark.parametrize(("no_color", "red"), [("", True), ("1", False)])
def test_no_color(monkeypatch, capsys, no_color, red):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(console, "width_of", lambda stream: 80)
    console.print_table([console.Column("a"), console.Column("b")], [["1", "WRONG"], ["2", "ok"]])
    assert ("\x1b[31m" in capsys.readouterr().out) == red


@pytest.mark.parametrize("width", [None, 30, 45, 80])
def test_no_terminal_is_too_narrow_for_a_table(monkeypatch, capsys, width):
    monkeypatch.setattr(console, "width_of", lambda stream: width)
    titles = ("ranks", "algorithm or scheme", "not computing")
    columns = [console.Column(title, left=title.startswith("algorithm")) for title in titles]
    console.print_table(columns, [["65536", "halving_doubling", "123.456789 %"]])
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "65536" in shown and "123.456789 %" in shown and "halving_do" in shown and "…" not in shown
    assert width in (None, 30) or max(map(len, shown.splitlines())) <= width


def test_columns_without_room_go_on_below(monkeypatch, capsys):
    """Numbers are never folded, so a table of many of them comes in parts, each under its first column."""
    monkeypatch.setattr(console, "width_of", lambda stream: 30)
    names = ["size", *(f"phase{i}" for i in range(7))]
    console.print_table([console.Column(name) for name in names], [["1 MiB", *(str(i * 1000) for i in range(7))]])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 30
    assert [line.split()[0] for line in lines] == ["size", "1"] * (len(lines) // 2)
    assert [name for line in lines[::2] for name in line.split()[1:]] == names[1:]
    assert [value for line in lines[1::2] for value in line.split()[2:]] == [str(i * 1000) for i in range(7)]


def test_progress_is_a_bar_on_a_terminal_only(monkeypatch, capsys):
    monkeypatch.setattr(console, "width_of", lambda stream: 60)
    console.Progress()("allreduce 4 KiB", 0.25)
    assert "[#####               ]  25% allreduce 4 KiB" in capsys.readouterr().err
    monkeypatch.setattr(console, "width_of", lambda stream: None)
    plain = console.Progress()
    plain("too soon", 0.1)
    plain._last -= 2 * console.PLAIN_PROGRESS_S
    plain("allreduce 4 KiB", 0.25)
    assert capsys.readouterr().err == "#  25% allreduce 4 KiB\n"
