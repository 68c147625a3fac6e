"""``mpicomp bench`` under the launchers: output, exit codes, files."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from progress import slowed

QUICK = ("--sizes", "1K,40K", "--iters", "5", "--warmup", "2")


def test_table_and_document(job, command, tmp_path):
    file = tmp_path / "result.json"
    ended = job(command, "bench", *QUICK, "-a", "native,ring", "-s", "scalecom:chunk=64,beta=0.5", "-o", str(file))
    assert ended.code == 0, ended.err
    table = [line for line in ended.out.splitlines() if not line.startswith("#")]
    data = [line.split() for line in table if " native " in line or " ring " in line]
    assert [(line[0], line[2], line[-1]) for line in data] == [
        ("1", "native", "ok"), ("1", "ring", "ok"), ("40", "native", "ok"), ("40", "ring", "ok")
    ]  # fmt: skip
    assert "\x1b" not in ended.out  # Open MPI gives ranks a terminal of its own; the output is a pipe all the same
    document = json.loads(file.read_text())
    assert document["format"] == "mpicomp-bench" and document["version"] == 1
    assert len(document["ranks"]) == job.ranks and len(document["rows"]) == 6
    assert not list(tmp_path.glob("*.part"))


def test_json_on_stdout(one_job, command):
    ended = one_job(command, "bench", "--json", *QUICK, "-a", "auto,native")
    rows = json.loads(ended.out)["rows"]
    assert [row["algorithm"] for row in rows] == ["auto", "native"] * 2
    assert rows[0]["vs"] == 1.0
    assert all(row["ok"] is True and row["iters"] == 5 and row["density"] is None for row in rows)


def test_wrong_result(job, faulty_bench):
    ended = job(faulty_bench, "-a", "native,wrong", *QUICK)
    assert ended.code == 2
    assert "WRONG" in ended.out
    assert ended.err.count("Error: wrong at 1024 bytes: 1 of 256 elements are wrong") == 1


def test_a_wrong_result_is_kept_however_long_writing_takes(one_job, faulty_bench, tmp_path):
    """Ranks that have nothing to write must not leave meanwhile: with code 2 they would end the job before the file."""
    file = tmp_path / "result.json"
    ended = one_job(faulty_bench, "-a", "native,wrong", *QUICK, "--output", str(file), SLOW_DISK="2")
    assert ended.code == 2 and "stopping all ranks" not in ended.err
    assert [row["ok"] for row in json.loads(file.read_text())["rows"]] == [True, False] * 2


def test_wrong_result_unseen_without_check(one_job, faulty_bench):
    ended = one_job(faulty_bench, "-a", "native,wrong", "--no-check", *QUICK)
    assert ended.code == 0
    assert "ok" not in ended.out.split()


def test_step_that_does_not_return(job, faulty_bench):
    limit = slowed(2)
    ended = job(faulty_bench, "-a", "native,hang", "--timeout", limit, *QUICK)
    assert ended.code == 124
    assert f"allreduce check of hang at 1 KiB did not return within {limit} s" in ended.err


def test_a_limit_of_nothing_is_no_limit(alone, command):
    ended = alone(command, "bench", *QUICK, "-a", "native", "--timeout", "0")
    assert (ended.code, ended.err) == (0, "")


def test_existing_output_is_kept(one_job, command, tmp_path):
    file = tmp_path / "result.json"
    file.write_text("precious")
    ended = one_job(command, "bench", *QUICK, "-a", "native", "-o", str(file))
    assert ended.code == 1
    assert ended.err.count("exists already") == 1
    assert file.read_text() == "precious"
    assert one_job(command, "bench", *QUICK, "-a", "native", "-o", str(file), "--force").code == 0
    assert json.loads(file.read_text())["rows"]


@pytest.mark.parametrize("place", ["missing/x.json", "file/x.json", "."])
def test_output_that_cannot_be_written(alone, command, tmp_path, place):
    (tmp_path / "file").touch()
    ended = alone(command, "bench", *QUICK, "-o", str(tmp_path / place))
    assert ended.code == 1
    assert ended.err.startswith("Error: ") and ended.err.count("\n") == 1
    assert "time us" not in ended.out  # said before the work, not after


def test_bad_input_is_said_once(job, command):
    """A single error line for the whole job; test_bad_plans has the texts."""
    ended = job(command, "bench", "-s", "topk:density=0")
    assert ended.code == 1
    assert ended.err.count("Error: ") == 1 and "Traceback" not in ended.err


@pytest.mark.parametrize("name", ["missing.npy", "integers.npy", "text.npy"])
def test_a_field_that_cannot_be_used_is_said_once(job, command, tmp_path, name):
    np.save(tmp_path / "integers.npy", np.arange(5))
    (tmp_path / "text.npy").write_text("1 2 3")
    ended = job(command, "bench", "--bound", "1e-3", "--data", str(tmp_path / name))
    assert ended.code == 1
    assert ended.err.count("Error: ") == 1 and name in ended.err and "Traceback" not in ended.err


def test_error_bound(one_job, alone, command, tmp_path):
    """Two launches on the field of a file, one merged table."""
    np.save(tmp_path / "field.npy", np.cos(np.arange(30_000).reshape(30, -1) / 1000))
    asked = ("bench", "--bound", "1e-2,1e-3", "--relative", "--data", str(tmp_path / "field.npy"), "-d", "double",
             "--op", "avg", *QUICK[2:])  # fmt: skip
    files = [str(tmp_path / "1.h5"), str(tmp_path / "2.csv")]
    for file in files:
        ended = one_job(command, *asked, "--output", file)
        assert ended.code == 0, ended.err
    assert ended.out.count("two_hops bound=0.001 relative") == 3 and "PSNR dB" in ended.out
    assert len(re.findall(r" auto .* rounding .* exact: ", ended.out)) == 2  # one node
    merged = alone(command, "bench", "merge", *files, "--json")
    rows = json.loads(merged.out)["rows"]
    assert [row["algorithm"] for row in rows] == ["native", "auto"] + 2 * ["auto", "two_hops"]
    assert all(row["ok"] and row["nbytes"] == 240_000 and row["launches"] == 2 for row in rows)
    for row in rows[2:]:
        exact = row["algorithm"] == "auto"  # one node
        assert (row["ran"], row["reason"] is None) == (("exact", False) if exact else ("two_hops", True))
        assert row["error_limit"] == pytest.approx(0 if exact else 2 * row["bound"], rel=1e-3)
        assert row["max_error"] <= row["error_limit"] + 1e-12


def test_dry_run(one_job, command):
    ended = one_job(command, "bench", "--dry-run", "-s", "topk")
    assert ended.code == 0
    assert f"ranks            {one_job.ranks}" in ended.out and "topk" in ended.out


@pytest.mark.parametrize("what", [("bcast", "-r", "1"), ("pingpong",), ("schemes", "-s", "topk")], ids=" ".join)
def test_other_collectives(one_job, command, tmp_path, what):
    file = tmp_path / "result.h5"
    ended = one_job(command, "bench", *what, *QUICK, "--output", str(file))
    assert ended.code == 0, ended.err
    assert ended.out.count("  ok") >= 4 and "WRONG" not in ended.out
    assert file.exists() and not list(tmp_path.glob("*.part"))


def test_baseline_configuration_and_merge(one_job, command, alone, tmp_path):
    """Two launches by a configuration file, compared with a baseline made impossibly fast, and merged."""
    (tmp_path / "run.toml").write_text('[bench]\nsizes = "1K"\nalgorithm = ["native"]\niters = 5\n')
    settings = ("bench", "--config", str(tmp_path / "run.toml"), "-n", "6")
    one, two = str(tmp_path / "1.json"), str(tmp_path / "2.json")
    assert one_job(command, *settings, "--output", one).code == 0
    document = json.loads((tmp_path / "1.json").read_text())
    assert [row["iters"] for row in document["rows"]] == [6]
    assert document["config"]["algorithms"] == ["native"] and document["config"]["file"].endswith("run.toml")
    assert document["argv"][-4:] == ["--algorithm", "native", "--sizes", "1K"]
    for row in document["rows"]:
        row.update({name: 1e-6 for name in row if name.startswith(("t_m", "t_p9", "ci_"))})
    (tmp_path / "fast.json").write_text(json.dumps(document))
    slower = one_job(command, *settings, "--output", two, "--baseline", str(tmp_path / "fast.json"))
    assert slower.code == 3, slower.err
    assert slower.err.count("Slower: native at 1024 bytes") == 1 and "SLOWER" in slower.out
    other = one_job(command, "bench", "bcast", *QUICK, "--baseline", one)
    assert other.code == 1 and other.err.count(f"not bcast on {one_job.ranks} ranks") == 1
    merged = alone(command, "bench", "merge", one, two, "--json")
    assert merged.code == 0, merged.err
    assert json.loads(merged.out)["rows"][0]["launches"] == 2


@pytest.mark.parametrize(("what", "fields"), [("allreduce", 0), ("bcast", 4)])
def test_layout_of_nccl_tests(one_job, command, what, fields):
    """Both places where a collective has both, else N/A in the four columns of the second."""
    ended = one_job(command, "bench", what, *QUICK, "-a", "native", "--format", "nccl")
    data = [line.split() for line in ended.out.splitlines() if line and not line.startswith("#")]
    assert [line[0] for line in data] == ["1024", "40960"] and ended.code == 0, ended.err
    assert all(len(line) == 13 and line.count("N/A") == fields for line in data)


def test_rows_as_they_come(one_job, command):
    ended = one_job(command, "bench", *QUICK, "-a", "native", "--format", "jsonl")
    assert [json.loads(line)["nbytes"] for line in ended.out.splitlines()] == [1024, 40960]
    assert "# noise: " in ended.err
