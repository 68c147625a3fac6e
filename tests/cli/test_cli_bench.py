"""``mpicomp bench`` and ``mpicomp info`` under the launchers: output, exit codes, files."""

from __future__ import annotations

import json

import pytest

QUICK = ("--sizes", "1K,40K", "--iters", "5", "--warmup", "2")


def test_table_and_document(job, command, tmp_path):
    file = tmp_path / "result.json"
    ended = job(command, "bench", *QUICK, "-a", "native,ring", "-s", "scalecom:chunk=64,beta=0.5", "-o", str(file))
    assert ended.code == 0, ended.err
    data = [line.split() for line in ended.out.splitlines() if " native " in line or " ring " in line]
    assert [(line[0], line[2], line[-1]) for line in data] == [
        ("1", "native", "ok"), ("1", "ring", "ok"), ("40", "native", "ok"), ("40", "ring", "ok")
    ]  # fmt: skip
    assert "\x1b" not in ended.out  # Open MPI gives ranks a terminal of its own; the output is a pipe all the same
    document = json.loads(file.read_text())
    assert document["format"] == "mpicomp-bench" and document["version"] == 1
    assert len(document["ranks"]) == job.ranks and len(document["rows"]) == 6
    assert not list(tmp_path.glob("*.part"))


def test_json_on_stdout(job, command):
    ended = job(command, "bench", "--json", *QUICK, "-a", "auto,native")
    rows = json.loads(ended.out)["rows"]
    assert [row["algorithm"] for row in rows] == ["auto", "native"] * 2
    assert rows[0]["vs"] == 1.0
    assert all(row["ok"] is True and row["iters"] == 5 and row["density"] is None for row in rows)


def test_wrong_result(job, faulty_bench):
    ended = job(faulty_bench, "-a", "native,wrong", *QUICK)
    assert ended.code == 2
    assert "WRONG" in ended.out
    assert ended.err.count("Error: wrong at 1024 bytes: 1 of 256 elements are wrong") == 1


def test_wrong_result_unseen_without_check(job, faulty_bench):
    ended = job(faulty_bench, "-a", "native,wrong", "--no-check", *QUICK)
    assert ended.code == 0
    assert "ok" not in ended.out.split()


def test_step_that_does_not_return(job, faulty_bench):
    ended = job(faulty_bench, "-a", "native,hang", "--timeout", "2", *QUICK)
    assert ended.code == 124
    assert "allreduce check of hang at 1 KiB did not return within 2 s" in ended.err
    assert ended.seconds < 30


def test_existing_output_is_kept(job, command, tmp_path):
    file = tmp_path / "result.json"
    file.write_text("precious")
    ended = job(command, "bench", *QUICK, "-a", "native", "-o", str(file))
    assert ended.code == 1
    assert ended.err.count("exists already") == 1
    assert file.read_text() == "precious"
    assert job(command, "bench", *QUICK, "-a", "native", "-o", str(file), "--force").code == 0
    assert json.loads(file.read_text())["rows"]


@pytest.mark.parametrize("place", ["missing/x.json", "file/x.json", "."])
def test_output_that_cannot_be_written(alone, command, tmp_path, place):
    (tmp_path / "file").touch()
    ended = alone(command, "bench", *QUICK, "-o", str(tmp_path / place))
    assert ended.code == 1
    assert ended.err.startswith("Error: ") and ended.err.count("\n") == 1
    assert "time us" not in ended.out  # said before the work, not after


@pytest.mark.parametrize(
    "arguments",
    [("-a", "rnig"), ("-s", "topk:density=0"), ("-s", "scalecom:chunk=0"), ("--sizes", "4Q"), ("-b", "2M", "-e", "1M")],
    ids=" ".join,
)
def test_bad_input_on_all_ranks(job, command, arguments):
    ended = job(command, "bench", *arguments)
    assert ended.code == 1
    assert ended.err.count("Error: ") == 1 and "Traceback" not in ended.err
    assert ended.seconds < 30


def test_dry_run(job, command):
    ended = job(command, "bench", "--dry-run", "-s", "topk")
    assert ended.code == 0
    assert f"ranks            {job.ranks}" in ended.out and "topk" in ended.out


def test_info(job, command):
    ended = job(command, "info", "--json")
    document = json.loads(ended.out)
    assert document["format"] == "mpicomp-info"
    assert len(document["ranks"]) == job.ranks
    assert {"MPI", "launcher", "GPU path", "CPUs", "ops"} <= {finding["name"] for finding in document["findings"]}
