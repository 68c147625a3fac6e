"""``mpicomp advise`` and ``tune --machine`` under the launchers; what one says about a machine the other takes."""

from __future__ import annotations

import json
import re


def test_advises_about_a_described_machine(job, command, tmp_path):
    file = tmp_path / "machine.json"
    wire = {"latency": 1e-4, "bandwidth": 1e6}
    file.write_text(json.dumps({"between": wire, "kernels": {"copy": 1e-10}}))
    given = ("--model", "100K", "--compute-time", "0.01", "-s", "scalecom,half", "--machine", str(file))
    ended = job(command, "advise", *given, "--check", "--json")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document["compress"] and document["verdict"].startswith("Compress: a step with scalecom")
    rows = {row["what"]: row for row in document["rows"]}
    assert set(rows) == {"ring", "halving_doubling", "scalecom", "half"}
    assert rows["scalecom"]["measured_exchange"] > 0 and rows["scalecom"]["published"]
    assert rows["scalecom"]["ranks"] == job.ranks


def test_a_busy_machine_is_named(one_job):
    """Its times describe the other processes, too."""
    busy = ("from mpicomp.bench import environment; from mpicomp.cli import main\n"
            "environment.FOREIGN_LIMIT = -1; main()")
    ended = one_job(["-c", busy], "advise", "--model", "10K", "--compute-time", "0.01", "-s", "half", "-q")
    assert ended.code == 0, ended.err
    assert len(re.findall(r"^noise: other processes used \d+% of the CPUs: ", ended.out, re.MULTILINE)) == 1


def test_bad_input_is_one_error(job, command):
    ended = job(command, "advise", "--model", "100K", "-s", "okaytopk")
    assert ended.code == 1 and ended.err.count("unknown scheme 'okaytopk'") == 1
    assert "Traceback" not in ended.err


def test_two_ways_to_give_the_computing_are_one_too_many(one_job, command):
    ended = one_job(command, "advise", "--model", "100K", "--compute-time", "1", "--compute", "os:getcwd")
    assert ended.code == 1 and "--compute-time and --compute say the same thing: give one of them" in ended.err


def test_overwrites_no_machine(job, command, tmp_path):
    file = tmp_path / "machine.json"
    file.write_text("mine")
    ended = job(command, "tune", "--machine", str(file))
    assert ended.code == 1 and "exists already" in ended.err
    assert file.read_text() == "mine"
