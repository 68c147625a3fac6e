"""Planted durations, bytes and delays come back as planted."""

import numpy as np
import pytest

import mpicomp.trace
from mpicomp.trace import tables, views


def test_phases(planted_trace):
    phases = {row["kind"]: row for row in mpicomp.trace.phases(planted_trace)}
    assert list(phases) == ["step", "exchange", "compute"]  # longest total first
    exchange = phases["exchange"]
    assert exchange["count"] == 30 and exchange["median"] == 3_000 and exchange["max"] == 3_000
    assert exchange["total"] == 20 * 3_000 + 10 * 2_000
    assert exchange["nbytes_sent"] == 3_000 and exchange["nbytes_recv"] == 6_000
    whole = 3 * 96_009  # ns from the first begin to the last end, on three ranks
    assert exchange["share"] == pytest.approx(80_000 / whole)
    assert phases["step"]["share"] == pytest.approx(3 * sum(6_000 + step for step in range(10)) / whole)


def test_a_step_marked_by_app_and_reducer_counts_once(plant, spool, tmp_path):
    plant(0).events(
        ("step", 0, 100, 0), ("step", 10, 90, 0, 400, 20), ("step", 100, 250, 1), ("compute", 0, 5, 0)
    ).done()
    mpicomp.trace.recover(spool, tmp_path / "out.h5")
    step = mpicomp.trace.phases(tmp_path / "out.h5")[0]
    assert (step["kind"], step["count"], step["total"], step["share"], step["nbytes_sent"]) == ("step", 2, 250, 1, 20)
    assert mpicomp.trace.steps(tmp_path / "out.h5")["max"] == 150


def test_steps(planted_trace):
    steps = mpicomp.trace.steps(planted_trace)
    assert (steps["count"], steps["first"], steps["max"]) == (10, 6_000, 6_009)
    assert steps["median"] == 6_004.5 and steps["p99"] == pytest.approx(6_008.91)


def test_a_drift_is_a_share_of_the_median_step():
    """A fall from 3 ms to 1 ms is more than a median step where most last 1 ms; no step falls by more than itself."""
    found = dict.fromkeys(("median", "p99", "max", "first"), 1e6) | {"count": 30, "drift": -2.0, "drift_noise": 0.1}
    shown = views.steps(found | {"drifts": True, "steps": dict.fromkeys((
        "step", "duration", "median_rank", "slowest_rank", "compute", "compression", "communication", "other"
    ), np.ones(30))})  # fmt: skip
    assert any("-200.0% of the median step" in fact.text for fact in shown.facts)


def test_traffic(planted_trace):
    traffic = mpicomp.trace.traffic(planted_trace)
    assert traffic["kind"] == "exchange"
    assert traffic["nbytes_sent"] == 3_000 and traffic["nbytes_sent_per_rank_and_step"] == 100
    assert traffic["compression_rate"] == pytest.approx(4_000 * 2 * (3 - 1) / 3 / 100)


def test_silent_steps_are_steps(plant, spool, tmp_path):
    """A scheme that sends in every fourth step sends a quarter per step."""
    for rank in range(3):
        rows = [("step", 100 * n, 100 * n + 50, n, 400, *((40, 40) if n == 3 else (0, 0))) for n in range(4)]
        plant(rank).events(*rows).done()
    mpicomp.trace.recover(spool, tmp_path / "out.h5")
    found = mpicomp.trace.traffic(tmp_path / "out.h5")
    assert (found["nbytes_dense"], found["nbytes_sent"], found["nbytes_sent_per_rank_and_step"]) == (4800, 120, 10)
    assert found["compression_rate"] == pytest.approx(2 * 2 / 3 * 40)


def test_steps_without_communication_are_steps(plant, spool, tmp_path):
    """A program that sums its gradients up and sends in every fourth step sends a quarter per step."""
    for rank in range(3):
        rows = [("step", 100 * n, 100 * n + 50, n) for n in range(8)]
        plant(rank).events(*rows, *(("collective", 100 * n + 10, 100 * n + 40, n, 400, 80, 80) for n in (3, 7)),
                           ("collective", 900, 940, -1, 400, 80, 80)).done()  # fmt: skip
    mpicomp.trace.recover(spool, tmp_path / "out.h5")
    found = mpicomp.trace.traffic(tmp_path / "out.h5")
    assert (found["nbytes_sent"], found["nbytes_sent_per_rank_and_step"]) == (720, 20)
    assert mpicomp.trace.diff(tmp_path / "out.h5", tmp_path / "out.h5", skip=0)["bytes_a"] == 20
    mpicomp.trace.recover(spool, tmp_path / "parts.h5", max_events=1)
    assert mpicomp.trace.traffic(tmp_path / "parts.h5") == found


def test_an_event_in_one_that_begins_with_it_does_not_count(plant, spool, tmp_path):
    """A journal has the inner event first: it ends first."""
    for rank in range(3):
        plant(rank).events(("exchange", 10, 50, 0, 400, 30, 30), ("step", 10, 60, 0, 400, 30, 30)).done()
    mpicomp.trace.recover(spool, tmp_path / "out.h5")
    assert mpicomp.trace.traffic(tmp_path / "out.h5")["nbytes_sent"] == 3 * 30


def test_what_no_step_sends_is_in_none(plant, spool, tmp_path):
    for rank in range(3):
        plant(rank).events(("collective", 10, 20, 0, 400, 30, 30), ("collective", 30, 40, -1, 4000, 600, 600)).done()
    mpicomp.trace.recover(spool, tmp_path / "out.h5")
    found = mpicomp.trace.traffic(tmp_path / "out.h5")
    assert (found["nbytes_sent"], found["nbytes_sent_per_rank_and_step"]) == (3 * 630, 30)


def test_traffic_without_steps(plant, spool, tmp_path):
    for rank in range(3):
        plant(rank).events(*(("collective", 10 * n, 10 * n + 5, -1, 400, 200, 200) for n in range(5))).done()
    mpicomp.trace.recover(spool, tmp_path / "out.h5")
    found = mpicomp.trace.traffic(tmp_path / "out.h5")
    assert (found["nbytes_sent"], found["nbytes_sent_per_rank_and_step"]) == (3000, None)
    assert "sends 3 kB in all, 2.67 x less" in views.traffic(found).facts[0].text


def test_traffic_beside_that_of_steps_counts(plant, spool, tmp_path):
    """A reducer's step carries its bytes; a collective of the program's own is not part of it."""
    for rank in range(3):
        rows = [("exchange", 10, 50, 0, 400, 30, 30), ("step", 0, 100, 0, 400, 30, 30),
                ("collective", 110, 150, 0, 400, 400, 400), ("wait", 160, 170, 0, 0, 7, 7)]
        plant(rank).events(*rows).done()
    mpicomp.trace.recover(spool, tmp_path / "out.h5")
    found = mpicomp.trace.traffic(tmp_path / "out.h5")
    assert (found["kind"], found["nbytes_sent"], found["nbytes_sent_per_rank_and_step"]) == ("step", 3 * 430, 430)
    assert found["nbytes_dense"] == 2400 and found["compression_rate"] == pytest.approx(2 * 2 / 3 * 2400 / (3 * 430))


def test_imbalance(planted_trace):
    imbalance = mpicomp.trace.imbalance(planted_trace)
    assert imbalance["kind"] == "exchange" and imbalance["collectives"] == 10
    assert imbalance["lateness"] == [0, 0, 1_000] and imbalance["slowest_rank"] == 2
    assert imbalance["spread"] == 1_000 and imbalance["significant"]


def test_imbalance_is_sought_where_ranks_wait(plant, spool, tmp_path):
    """A rank that computes longer comes late to the agreement, and with all others to the exchange behind it."""
    for rank in range(3):
        late = 500 * (rank == 1)
        plant(rank).events(*(row for step in range(10) for row in (
            ("agree", 2_000 * step + late, 2_000 * step + 600, step),
            ("exchange", 2_000 * step + 700, 2_000 * step + 900, step))
        )).done()  # fmt: skip
    mpicomp.trace.recover(spool, tmp_path / "out.h5")
    imbalance = mpicomp.trace.imbalance(tmp_path / "out.h5")
    assert imbalance["kind"] == "agree" and imbalance["lateness"] == [0, 500, 0] and imbalance["slowest_rank"] == 1
    assert imbalance["median_wait"] == 500 and imbalance["collectives"] == 10


def test_no_claim_below_the_clocks_uncertainty(plant, spool, tmp_path):
    for rank in range(3):
        own = plant(rank, clock=f"host{rank}", offsets=[(0, 0, 1_500 if rank else 0)])
        own.events(*(("exchange", 10_000 * n + 1_000 * (rank == 2), 10_000 * n + 5_000, n) for n in range(5))).done()
    mpicomp.trace.recover(spool, tmp_path / "out.h5")
    imbalance = mpicomp.trace.imbalance(tmp_path / "out.h5")
    assert imbalance["clock_uncertainty"] == 750 and imbalance["spread"] == 1_000 and not imbalance["significant"]


def test_metrics(planted_trace):
    loss = mpicomp.trace.metrics(planted_trace)["loss"]
    assert (loss["count"], loss["first"], loss["last"], loss["min"], loss["max"]) == pytest.approx((30, 1, 0.1, 0.1, 1))
    assert loss["steps"] == list(range(10))


def test_least_and_greatest_of_a_metric_are_values(plant, spool, tmp_path):
    """Not means over ranks, which hide the one that is far off."""
    for rank in range(3):
        plant(rank).metric("loss", 5.0, 8.0 + rank).done()
    mpicomp.trace.recover(spool, tmp_path / "out.h5")
    loss = mpicomp.trace.metrics(tmp_path / "out.h5")["loss"]
    assert (loss["values"], loss["min"], loss["max"]) == ([5.0, 9.0], 5.0, 10.0)


def test_metrics_that_are_not_finite(plant, spool, tmp_path):
    plant(0).metric("loss", float("inf"), 2.0, float("nan")).done()
    mpicomp.trace.recover(spool, tmp_path / "out.h5")
    loss = mpicomp.trace.metrics(tmp_path / "out.h5")["loss"]
    assert (loss["first"], loss["last"], loss["min"], loss["values"]) == (None, None, 2.0, [None, 2.0, None])


@pytest.mark.parametrize("value", [1.7e308, 0.1, 1e-306, 1e-320])
def test_the_mean_of_equal_metrics_is_their_value(plant, spool, tmp_path, value):
    for rank in range(3):
        plant(rank).metric("loss", value).done()
    mpicomp.trace.recover(spool, tmp_path / "out.h5")
    assert mpicomp.trace.metrics(tmp_path / "out.h5")["loss"]["first"] == pytest.approx(value, rel=1e-5)


@pytest.mark.filterwarnings("error")
def test_shares_of_a_run_longer_than_int64(plant, spool, tmp_path):
    late = 3 << 61
    for rank in range(3):
        plant(rank).events(("step", -late, 10 - late, 0), ("step", late, late + 10, 1)).done()
    mpicomp.trace.recover(spool, tmp_path / "out.h5")
    assert mpicomp.trace.phases(tmp_path / "out.h5")[0]["share"] == pytest.approx(20 / (2 * late))


def test_summary_groups_by_what_is_asked(planted_trace):
    by_rank = mpicomp.trace.summary(planted_trace, ("rank", "kind"))
    assert len(by_rank) == 9 and {row["count"] for row in by_rank} == {10}
    by_size = mpicomp.trace.summary(planted_trace)
    assert {(row["kind"], row["size_bin"]) for row in by_size} == {("step", 0), ("compute", 0), ("exchange", 4096)}
    with mpicomp.trace.open_trace(planted_trace) as trace:
        stored = trace.table("summary")
    assert sorted(stored["total"].tolist()) == sorted(row["total"] for row in by_size)


def test_info(planted_trace):
    info = mpicomp.trace.info(planted_trace)
    assert (info["n_ranks"], info["n_nodes"], info["hosts"]) == (3, 2, ["node0", "node1"])
    assert info["complete"] is True and info["n_events"] == 90 and info["duration"] == 96_009


def test_a_run_of_nothing_can_be_reported(plant, spool, tmp_path):
    plant(0).done()
    mpicomp.trace.recover(spool, tmp_path / "out.h5")
    report = mpicomp.trace.report(tmp_path / "out.h5")
    assert report["steps"] == {"count": 0} and report["phases"] == [] and report["traffic"]["kind"] is None


def test_ordinal_and_groups():
    key = np.array([3, 1, 3, 3, 1])
    assert tables.ordinal(key).tolist() == [0, 0, 1, 2, 1]
    assert [(value, rows.tolist()) for (value,), rows in tables.groups(key)] == [(1, [1, 4]), (3, [0, 2, 3])]
    assert list(tables.groups(np.empty(0, int))) == []
    assert tables.size_bin(np.array([0, 1, 2, 3, 4096, 4097], np.uint64)).tolist() == [0, 1, 2, 4, 4096, 8192]
