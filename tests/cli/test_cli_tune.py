"""``mpicomp tune`` under the launchers: the table it writes, and that ``auto`` takes it."""

from __future__ import annotations

import json

import pytest

from mpicomp.allreduce import ALGORITHMS
from mpicomp.allreduce.table import load

QUICK = ("-b", "1K", "-e", "16K", "-f", "16", "--min-time", "0.01", "--max-time", "0.3")


def test_writes_a_table_that_auto_takes(job, command, tmp_path):
    """Rows of other layouts stay."""
    file = tmp_path / "tuning.json"
    row = {"ranks_per_node": 1, "nodes": 4, "device": "cpu", "choices": [{"max_bytes": None, "algorithm": "ring"}]}
    file.write_text(json.dumps({"format": "mpicomp-tuning", "version": 1, "rows": [row]}))
    ended = job(command, "tune", *QUICK, "-a", "ring", "-o", str(file))
    assert ended.code == 0, ended.err
    table = load(file.read_text(), "file", list(ALGORITHMS))
    assert [(row.ranks_per_node, row.nodes, row.device) for row in table.rows] == [
        (job.ranks, 1, "cpu"), (1, 4, "cpu")
    ]  # fmt: skip
    assert table.rows[0].measured["ranks"] == job.ranks
    assert f"export MPICOMP_TUNING={file}" in ended.out
    used = job(command, "bench", "--sizes", "1K", "-a", "native,auto", "--iters", "5", MPICOMP_TUNING=str(file))
    assert used.code == 0, used.err


def test_replaces_no_row_unasked(one_job, command, tmp_path):
    file = tmp_path / "tuning.json"
    row = {"ranks_per_node": one_job.ranks, "nodes": 1, "device": "cpu", "measured": {"host": "elsewhere"}}
    row["choices"] = [{"max_bytes": None, "algorithm": "ring"}]
    text = json.dumps({"format": "mpicomp-tuning", "version": 1, "rows": [row]})
    file.write_text(text)
    ended = one_job(command, "tune", *QUICK, "-a", "node_shared", "-o", str(file))
    assert ended.code != 0
    assert "already: choose another file, or --force" in ended.err
    assert file.read_text() == text
    ended = one_job(command, "tune", *QUICK, "-a", "node_shared", "-o", str(file), "--force", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out) == json.loads(file.read_text())
    assert [row["measured"]["ranks"] for row in json.loads(file.read_text())["rows"]] == [one_job.ranks]


def test_refuses_what_is_no_table(one_job, command, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    ended = one_job(command, "tune", *QUICK, "-o", str(file))
    assert ended.code == 1
    assert "notes.txt is no tuning table" in ended.err
    assert file.read_text() == "mine"


@pytest.mark.parametrize("margin", ["nan", "inf", "-0.1"])
def test_a_margin_is_a_number_from_0(alone, command, margin):
    ended = alone(command, "tune", "--margin", margin)
    assert ended.code == 1 and ended.err.startswith("Error: --margin must be a number from 0, got ")


def test_one_rank_has_nothing_to_tune(alone, command):
    ended = alone(command, "tune", *QUICK)
    assert ended.code == 1
    assert "one rank has nothing to tune" in ended.err
