"""``mpicomp check-part``: on one rank and a job that it starts, or on the ranks of a launcher."""

from __future__ import annotations

import json
import re

import pytest

PARTS = '''
import os
import mpicomp
from mpicomp.schemes.codecs import CODECS
from mpicomp.schemes.memories import MEMORIES

class Whole(CODECS["float"]):
    """Rounds to whole numbers."""
    name, options = "whole", ()
    def __init__(self):
        super().__init__(values="float64")
    def encode(self, values, place, ctx):
        return super().encode(values.round(), place, ctx)
    def sends_unchanged(self, dtype):
        return False

@mpicomp.register_part("codec")
class Good(Whole):
    name = "good"

@mpicomp.register_part("codec")
class Ending(Whole):
    name = "ending"
    def encode(self, values, place, ctx):
        if ctx.comm.rank == 2:
            os._exit(3)
        return super().encode(values, place, ctx)

@mpicomp.register_part("memory")
class Dropping(MEMORIES["residual"]):
    name = "dropping"
    def update(self, u, sent, ctx):
        u.memory[:] = 0
        yield
'''
LACKING = """
import mpicomp

@mpicomp.register_part("codec")
class Lacking:
    name, reference, options = "lacking", "a test", ()
    def encode(self, values, place, ctx):
        return values
"""


MAKES_NOTHING = """
import mpicomp
from mpicomp.schemes.codecs import CODECS

print("imported")

@mpicomp.register_part("codec")
class Refusing(CODECS["float"]):
    name, options = "refusing", ()
    def __init__(self, values):
        pass

@mpicomp.register_part("codec")
class Leaving(CODECS["float"]):
    name, options = "leaving", ()
    def __init__(self):
        super().__init__(values="float64")
    def encode(self, values, place, ctx):
        raise SystemExit(0)
"""


ON_ONE_RANK = """
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    raise RuntimeError("no such table")
from parts_of_mine import Good
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "on-one-rank.py").write_text(ON_ONE_RANK)
    (tmp_path / "faulty_parts.py").write_text(MAKES_NOTHING)
    (tmp_path / "exits.py").write_text("raise SystemExit(0)")
    (tmp_path / "parts_of_mine.py").write_text(PARTS)
    (tmp_path / "lacking.py").write_text(LACKING)
    return {"PYTHONPATH": str(tmp_path)}


def test_a_good_part_on_one_rank_and_on_three(alone, command, path):
    ended = alone(command, "check-part", "parts_of_mine:Good", **path)
    assert ended.code == 0, ended.err
    lines = [line.split() for line in ended.out.splitlines()[2:]]
    assert [line[-2:] for line in lines] == [["1", "yes"]] * (len(lines) // 2) + [["3", "yes"]] * (len(lines) // 2)
    assert "sent + kept = came in" in ended.out


def test_a_broken_part_under_a_launcher(one_job, command, path):
    ended = one_job(command, "check-part", "parts_of_mine:Dropping", "--scheme", "topk:k=3", **path)
    assert ended.code == 2, ended.err
    assert f"sent + kept = came in      {one_job.ranks}  WRONG\n" in ended.out
    assert f"sent + kept = came in, {one_job.ranks} ranks: topk:k=3,memory=dropping: " in ended.out
    assert "To do for sent + kept = came in: A memory holds back u less what was sent." in ended.out


def test_a_part_that_lacks_a_verb(alone, command, path):
    ended = alone(command, "check-part", "lacking:Lacking", "--json", **path)
    assert ended.code == 2, ended.err
    (row,) = json.loads(ended.out)["rows"]
    assert (row["promise"], row["ranks"], row["passed"]) == ("protocol", 1, False)
    assert "Lacking has no decode(codes, place, ctx)" in row["reason"]


@pytest.mark.parametrize(("part", "promise", "text"), [
    ("faulty_parts:Refusing", "protocol", "the part cannot be made: TypeError"),
    ("faulty_parts:Leaving", "any length and dtype", r"called sys\.exit\(0\)"),
    ("exits:Part", "protocol", r"called sys\.exit\(0\)"),
])  # fmt: skip
def test_a_part_that_fails_at_once(alone, command, path, part, promise, text):
    """And prints: only the document is on standard output."""
    ended = alone(command, "check-part", part, "--json", **path)
    assert ended.code == 2 and "Traceback" not in ended.err, ended.err
    row = next(row for row in json.loads(ended.out)["rows"] if row["passed"] is False)
    assert row["promise"] == promise and re.search(text, row["reason"])


def test_an_error_of_all_promises_is_printed_once(one_job, command, path):
    ended = one_job(command, "check-part", "faulty_parts:Leaving", **path)
    assert ended.code == 2, ended.err
    assert ended.out.count("called sys.exit(0)") == 1
    assert ended.out.count("WRONG") == 1
    assert re.search(r"same on all ranks, sent \+ kept = came in, .*NaN refused, \d ranks?: left out, not judged: the "
                     "error of any length and dtype", ended.out), ended.out


def test_a_part_that_one_rank_cannot_make(one_job, command, path):
    ended = one_job(command, "check-part", "on-one-rank:Good", **path)
    assert ended.code == 2, ended.err
    assert "rank 1: the part cannot be made: RuntimeError: no such table" in ended.out


@pytest.mark.parametrize(("part", "text"), [
    ("./parts_of_mine:Good", "a part is written MODULE:CLASS, as in package.module:Part, got './parts"),
    ("parts_of_mine", "a part is written MODULE:CLASS, as in package.module:Part, got 'parts_of_mine'"),
    ("nowhere:Good", "no part nowhere:Good: No module named 'nowhere'"),
    ("parts_of_mine:Other", "no part parts_of_mine:Other: .*has no attribute 'Other'"),
    ("parts_of_mine:Whole", "Whole is no registered part: put @mpicomp.register_part"),
])  # fmt: skip
def test_what_is_no_part(alone, command, path, part, text):
    ended = alone(command, "check-part", part, **path)
    assert ended.code == 1
    assert ended.out == ""
    assert re.search(f"Error: {text}", ended.err), ended.err


@pytest.mark.long("waits for the end of a job")
def test_a_job_that_ends(alone, command, path):
    ended = alone(command, "check-part", "parts_of_mine:Ending", "--json", **path)
    assert ended.code == 2, ended.err
    row = json.loads(ended.out)["rows"][-1]
    assert (row["promise"], row["ranks"], row["passed"]) == ("any length and dtype", 3, False)
    assert row["reason"].startswith("the job ended with exit code ")
