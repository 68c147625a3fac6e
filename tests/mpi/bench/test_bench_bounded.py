"""The error-bounded all-reduce in the bench, inside every rank."""

import numpy as np
import pytest

from mpicomp import bench
from mpicomp.bench.bounded import Bounded, Fields
from mpicomp.bench.plan import Plan


def plan(**given):
    return Plan(**{"sizes": (1, 40_000), "algorithms": ("native", "auto"), "bounds": (1e-2, 1e-4), "relative": True,
                   "iters": 2, "warmup": 2, **given})  # fmt: skip


def rows_of(comm, **given):
    return [row for rows in bench.run(comm, plan(**given)) for row in rows]


@pytest.mark.parametrize(
    ("data", "dtype", "op"),
    [("smooth", "float32", "sum"), ("turbulence", "float64", "avg"), ("noise", "float32", "avg"),
     ("noise", "float64", "sum")],
)  # fmt: skip
def test_rows(comm, data, dtype, op):
    rows = rows_of(comm, data=data, dtype=dtype, op=op, place="both")
    assert all(row["ok"] for row in rows), [row for row in rows if not row["ok"]]
    assert comm.bcast(rows) == rows  # the same on every rank
    assert len(rows) == 2 * 2 * (2 + 2 * 2)
    for row in rows:
        if row["bound"] is None:
            assert row["ran"] is row["max_error"] is row["data"] is row["ratio"] is None
            continue
        assert (row["data"], row["relative"], row["op"], row["busbw_gbs"]) == (data, True, op, None)
        exact = row["algorithm"] == "auto"
        assert (row["ran"] == "exact") == (row["reason"] is not None) == (row["error_limit"] == 0) or not exact
        if row["nbytes"] > 8 and not exact:
            assert 0 < row["max_error"] < 1.01 * row["error_limit"]
            assert row["psnr_db"] > -20 * np.log10(row["bound"] * (comm.size if op == "sum" else 1)) - 1
            assert (row["ratio"] or 2) > 1


def test_beyond_the_bound_is_wrong(comm):
    """A planted error on one rank counts there, and makes the ranks' bits differ."""
    fields = Fields(comm, plan(data="noise"), 5000)
    bounded = Bounded("two_hops", 1e-2, plan(data="noise"), fields, "out")
    assert bounded.check() == 0
    limit = bounded._stats.largest_error
    if comm.rank == comm.size - 1:
        fields.receive[[0, 77, 4999]] += 3 * limit
    found = fields.errors(limit)
    assert found.wrong == 3 * (comm.rank == comm.size - 1) + (comm.size > 1)
    assert bounded.facts(1).max_error <= limit * 1.01


def test_nan_and_infinity_escape(comm, tmp_path):
    """Blocks with NaN and infinity arrive as in an ordinary sum; the others keep the bound."""
    path = str(tmp_path / f"{comm.rank}.npy")  # every rank its own
    values = np.sin(np.arange(640, dtype=np.float32))
    values[:320:2], values[300] = np.nan, np.inf
    np.save(path, values)
    fields = Fields(comm, plan(data=path), 640)
    bounded = Bounded("two_hops", 1e-2, plan(data=path), fields, "out")
    assert bounded.check() == 0
    assert comm.bounded_stats.escaped_blocks > 0
    exact, found = fields.exact.result, bounded._errors
    known = np.isfinite(exact)
    error = fields.receive[known] - exact[known]
    wanted = 20 * np.log10(np.ptp(exact[known]) / np.sqrt(np.mean(error**2))) if error.any() else None
    assert np.isfinite(found.largest) and found.psnr_db == (wanted and pytest.approx(wanted, abs=1e-6))
    fields.receive[np.isnan(fields.receive)] = 0
    assert fields.errors(1).wrong > 0


def test_error_of_one_rank_is_raised_on_all(comm, tmp_path):
    path = tmp_path / "x.npy"
    if comm.rank:
        path = tmp_path / f"{comm.rank}.npy"
        np.save(path, np.zeros(1000, np.float32))
    with pytest.raises(FileNotFoundError, match=r"x\.npy"):
        Fields(comm, plan(data=str(path)), 100)


def test_without_check_there_are_no_errors(comm):
    rows = rows_of(comm, check=False, sizes=(4000,))
    assert all(row["max_error"] is row["psnr_db"] is row["ok"] is None for row in rows)
    assert rows[-1]["error_limit"] > 0
