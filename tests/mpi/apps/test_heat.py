"""The ensemble of heat equations on every number of ranks."""

import json
import math

import pytest
from click.testing import CliRunner
from mpi4py import MPI

import mpicomp
from mpicomp.apps.heat import Settings, simulate
from mpicomp.cli.train.command import heat as command
from mpicomp.errors import InvalidArgument
from mpicomp.trace import NullRecorder

QUICK = {"grid": 16, "steps": 20, "every": 5}


def run(comm, **given):
    return simulate(comm, Settings(**{**QUICK, **given}), NullRecorder())


@pytest.mark.parametrize("seed", [0, 1])
def test_a_bound_of_1e_4_is_as_good_as_the_exact_mean(comm, seed):
    """It changes the mean by less than a tenth of the discretisation error and of the members' spread."""
    series = run(comm, seed=seed).series
    assert comm.bcast(series) == series  # the same on every rank
    assert [point.step for point in series] == [5, 10, 15, 20]
    for point in series:
        assert point.ran == "two_hops" and point.ratio > 1
        assert 0 < 10 * point.difference < point.discretisation
        if comm.size > 1:
            assert 10 * point.difference < point.spread
        assert abs(point.energy_change) < 1e-3
        assert point.difference <= point.largest


def test_differences_follow_the_bound(comm):
    """A mean differs by at most its own bound and what earlier ones left; ten times the bound is worse."""
    fine, coarse = (run(comm, bound=bound, relative=False).series for bound in (1e-3, 1e-2))
    for number, (one, ten) in enumerate(zip(fine, coarse, strict=True), 1):
        assert one.largest <= number * 1e-3 + 1e-5
        assert ten.difference > 2 * one.difference


def test_auto_is_exact_on_one_node(comm):
    for point in run(comm, algorithm="auto").series:
        assert point.ran.startswith("exact: ") and point.ratio == 1
        assert point.largest < 1e-6  # roundings: a sum and a division, or one step


def test_the_mean_is_that_of_the_solution(comm):
    """Four times smaller errors on twice as many points, at the same time."""
    errors = [run(comm, grid=grid, steps=steps, every=steps, relax=0).series[-1].discretisation
              for grid, steps in ((24, 10), (48, 40))]  # fmt: skip
    assert 3 < errors[0] / errors[1] < 5


def test_relaxation_shrinks_the_spread_and_keeps_the_mean(comm):
    free, tied = (run(comm, relax=relax, members=3) for relax in (0, 1))
    assert tied.series[-1].spread < 0.8 * free.series[-1].spread
    for one, other in zip(free.series, tied.series, strict=True):
        assert one.discretisation == pytest.approx(other.discretisation, rel=1e-2)


def test_members_do_not_depend_on_ranks(comm):
    """One rank with all members has the same ensemble."""
    spread = run(comm, members=2).series
    alone = run(mpicomp.Comm(MPI.COMM_SELF), members=2 * comm.size).series
    for one, other in zip(spread, alone, strict=True):
        for name in ("energy", "spread", "discretisation"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-3)


@pytest.mark.parametrize(
    ("given", "text"),
    [({"grid": 3}, "grid must be at least 4, got 3"), ({"members": 0}, "members must be at least 1"),
     ({"steps": 0}, "steps must be at least 1"), ({"every": 21}, "every must be at most the number of steps, 20"),
     ({"relax": 1.5}, r"relax must be in \[0, 1\], got 1.5"), ({"relax": math.nan}, "relax must be in"),
     ({"bound": 0.0}, "bound must be a positive finite number, got 0"),
     ({"bound": math.inf}, "bound must be a positive finite number, got inf"), ({"seed": -1}, "seed must be")],
)  # fmt: skip
def test_bad_settings(given, text):
    with pytest.raises(InvalidArgument, match=text):
        Settings(**{**QUICK, **given})


def test_command(comm, shared_tmp):
    """A table by rank 0; JSON and a trace."""
    asked = ["--grid", "8", "--steps", "6", "--every", "3", "--members", "1"]
    ended = CliRunner().invoke(command, asked, catch_exceptions=False)
    assert "the error bound changes the mean by" in ended.stdout or comm.rank
    path = str(shared_tmp / "run.h5")
    ended = CliRunner().invoke(command, [*asked, "--json", "--absolute", "--trace", path], catch_exceptions=False)
    if comm.rank == 0:
        document = json.loads(ended.stdout)
        assert document["format"] == "mpicomp-train-heat" and document["complete"] and len(document["series"]) == 2
        assert document["settings"]["relative"] is False and document["ranks"] == comm.size
