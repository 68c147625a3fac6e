"""Runs with planted answers: each analysis gives back what was put in, and claims nothing beyond clocks and noise."""

import numpy as np
import pandas
import pytest
from planted_runs import Run, lockstep

import mpicomp.trace as trace
from mpicomp.errors import InvalidArgument
from mpicomp.trace.analyses.frame import opened

MS = 1_000_000
UNSURE = np.full(8, 4_000)  # round trips (ns): an uncertainty above the jitter, so that no rank seems late by chance


def delays(n_ranks, n_steps, **late):
    result = np.zeros((n_ranks, n_steps), np.int64)
    for rank, delay in late.items():
        result[int(rank[1:])] = delay
    return result


# -- whose time


def test_the_generator_writes_honest_files(path, rng):
    assert trace.validate(lockstep(3, 4, 0, rng).write(path)) == []


def test_time_is_that_of_the_event_begun_last(path):
    run = Run(2).add("compress", 0, 0, 0, 100).add("broadcast", 0, 0, 20, 50).add("compute", 0, 0, 90, 130)
    run.add("compute", 1, 0, 7, 17).add("io", 1, 0, 27, 30).write(path)
    result = trace.breakdown(path)
    time = {kind: result["time"][:, column].tolist() for column, kind in enumerate(result["kinds"])}
    assert time == {"compress": [60, 0], "broadcast": [30, 0], "compute": [40, 10], "io": [0, 3]}
    assert result["ranks"]["unrecorded"].tolist() == [0, 10]
    classes = dict(zip(result["classes"]["class"], result["classes"]["time"], strict=True))
    assert classes == {"other": 3, "compute": 50, "compression": 60, "communication": 30, "unrecorded": 10}
    assert result["classes"]["share"].sum() == pytest.approx(1)


def test_steps_that_some_ranks_did_not_live_to_see(path):
    """Times per rank are those of the ranks that recorded any in a step, be it the whole step or a part."""
    run = Run(3).add("step", [0, 1, 2], 0, 0, 100).add("exchange", [0, 1, 2], 0, 10, 40)
    run.add("step", [0, 1], 1, 100, 200).add("exchange", [0, 1, 2], 1, 110, 140)
    run.add("step", [0, 1], 2, 200, 300).add("exchange", [0, 1], 2, 210, 240).write(path)
    steps, overlap = trace.steps(path)["steps"], trace.overlap(path)["steps"]
    assert steps["communication"].tolist() == overlap["exposed"].tolist() == [30, 30, 30]
    assert steps["other"].tolist() == [70, pytest.approx(140 / 3), 70]


def test_any_tangle_of_events_is_cut_as_an_instant_by_instant_search_says(path, rng):
    run, kinds = Run(3), ["compute", "exchange", "select", "step", "io"]
    rows = []
    for _ in range(120):
        rank, kind, begin = int(rng.integers(3)), kinds[rng.integers(5)], int(rng.integers(60))
        rows.append((rank, kind, begin, begin + int(rng.integers(-2, 30))))
        run.add(kind, rank, 0, *rows[-1][2:])
    run.write(path)
    with opened(path) as frame:
        names = [frame.kinds[code] for code in frame.kind[frame.pieces.event]]
        got = np.zeros((3, 100), dtype=object)
        hidden = np.zeros((3, 100), bool)
        for row, (name, begin, end) in enumerate(zip(names, frame.pieces.begin, frame.pieces.end, strict=True)):
            rank = frame.rank[frame.pieces.event[row]]
            assert not got[rank, begin:end].any()
            got[rank, begin:end], hidden[rank, begin:end] = name, frame.hidden()[row]
    for rank in range(3):
        for instant in range(100):
            there = [row for row in rows if row[0] == rank and row[2] <= instant < row[3]]
            kinds_there = {kind for _, kind, *_ in there}
            latest = {row[1] for row in there if (row[2], -row[3]) == max((r[2], -r[3]) for r in there)}
            assert got[rank, instant] in (latest or {0})
            works = "compute" in kinds_there or got[rank, instant] == "select"
            assert hidden[rank, instant] == ("exchange" in kinds_there and works)


def test_an_overlap_of_37_percent(path):
    run = Run(4)
    rank, step = np.arange(4)[:, None], np.arange(50)[None, :]
    begin = step * MS
    run.add("step", rank, step, begin, begin + 500_000)
    run.add("compute", rank, step, begin, begin + 137_000)
    run.add("allreduce", rank, step, begin + 100_000, begin + 200_000)
    run.write(path)
    result = trace.overlap(path)
    assert result["share"] == pytest.approx(0.37) and result["exposed"] == 4 * 50 * 63_000
    assert result["steps"]["share"] == pytest.approx(np.full(50, 0.37)) and result["enclosed"] == 0
    assert result["ranks"]["hidden"].tolist() == [50 * 37_000] * 4


def test_communication_inside_a_computation_is_hidden_only_if_it_does_not_block(path):
    Run(1).add("backward", 0, 0, 0, 100).add("allreduce", 0, 0, 20, 50).write(path)
    assert trace.overlap(path)["share"] == 1 and trace.overlap(path)["enclosed"] == 30
    assert trace.overlap(path, enclosed=False)["share"] == 0


def test_work_in_the_time_of_an_exchange_is_hidden_and_a_broadcast_in_a_compression_is_not(path):
    run = Run(1).add("exchange", 0, 0, 0, 100).add("update", 0, 0, 30, 55)
    run.add("compress", 0, 0, 100, 200).add("broadcast", 0, 0, 110, 150).write(path)
    result = trace.overlap(path)
    assert (result["hidden"], result["exposed"]) == (25, 75 + 40)


def test_efficiencies_multiply_and_are_as_planted(path):
    run = Run(2)  # ranks compute 60 and 100, then 100 and 60; an exchange takes 20 after the last has come
    for step, work in enumerate([(60, 100), (100, 60)]):
        for rank in range(2):
            begin = 120 * step
            run.add("step", rank, step, begin, begin + 120)
            run.add("compute", rank, step, begin, begin + work[rank])
            run.add("exchange", rank, step, begin + work[rank], begin + 120)
    result = trace.efficiency(run.write(path))
    assert result["parallel_efficiency"] == pytest.approx(160 / 240)
    assert result["load_balance"] == 1 and result["communication_efficiency"] == pytest.approx(160 / 240)
    assert result["serialisation"] == pytest.approx(160 / 200) and result["transfer"] == pytest.approx(200 / 240)
    assert result["computation_share"] == 1


def test_efficiency_counts_compression_and_says_why_it_cannot_replay(path):
    run = Run(2).add("step", [0, 1], 0, 0, 100).add("select", [0, 1], 0, 0, 20).add("exchange", [0, 1], 0, 20, 60)
    run.add("exchange", 1, 0, 70, 80).write(path)
    result = trace.efficiency(path)
    assert result["computation_share"] == pytest.approx(1 - 40 / (60 + 50))
    assert result["transfer"] is None and "between 1 and 2" in result["reason"]


# -- who was late


@pytest.mark.parametrize(("n_ranks", "n_steps"), [(4, 40), (256, 20), (8192, 6)])
def test_a_straggler_of_60_us(path, rng, n_ranks, n_steps):
    slow = int(rng.integers(n_ranks))
    run = lockstep(n_ranks, n_steps, delays(n_ranks, n_steps, **{f"r{slow}": 60_000}), rng, jitter=20_000)
    result = trace.stragglers(run.write(path))
    assert result["late_ranks"] == [slow] and result["kind"] == "exchange" and result["absent"] == []
    ranks = pandas.DataFrame(result["ranks"]).set_index("rank")
    assert ranks.lateness[slow] == pytest.approx(60_000, abs=20_000) and ranks.caused.idxmax() == slow
    assert ranks["last"][slow] == 1 and ranks.late[slow] == 1
    assert result["nodes"]["late_ranks"].sum() == 1


def test_no_straggler_among_equals(path, rng):
    result = trace.stragglers(lockstep(300, 10, 0, rng, jitter=50_000).write(path))
    assert result["late_ranks"] == []


def test_lateness_shows_at_the_first_call_after_the_delay(path, rng):
    run = Run(8, rtt=UNSURE[:8])
    rank, step = np.arange(8)[:, None], np.arange(30)[None, :]
    begin, late = step * MS, np.where(rank == 5, 70_000, 0) + rng.integers(0, 2_000, (8, 30))
    run.add("agree", rank, step, begin + late, begin + 100_000)
    run.add("exchange", rank, step, begin + 100_000 + rng.integers(0, 2_000, (8, 30)), begin + 200_000)
    result = trace.stragglers(run.write(path))
    assert (result["kind"], result["late_ranks"]) == ("agree", [5])
    assert trace.stragglers(path, kind="exchange")["late_ranks"] == []
    with pytest.raises(InvalidArgument, match="must be one of"):
        trace.stragglers(path, kind="compute")


def test_a_clock_offset_of_190_ms_is_taken_out(path, rng):
    offset = np.where(np.arange(8) >= 4, 190 * MS, 0)
    facts = {"offset": offset, "rtt": np.where(offset > 0, 8_000, 0)}
    result = trace.stragglers(lockstep(8, 30, delays(8, 30, r6=60_000), rng, **facts).write(path))
    assert result["late_ranks"] == [6] and result["clock_uncertainty"] == 8_000
    assert np.abs(np.delete(result["ranks"]["lateness"], 6)).max() < 2_000
    assert trace.timeline(path)["duration"] < MS


def test_nothing_is_claimed_below_the_clocks_uncertainty(path, rng):
    facts = {"rtt": np.where(np.arange(8) >= 4, 200_000, 0)}
    result = trace.stragglers(lockstep(8, 30, delays(8, 30, r6=60_000), rng, **facts).write(path))
    assert result["late_ranks"] == [] and result["ranks"]["lateness"][6] > 55_000
    assert np.isnan(trace.collectives(path)["collectives"]["wait"]).all()
    known = trace.stragglers(lockstep(8, 30, delays(8, 30, r2=60_000), rng, **facts).write(path))
    assert known["ranks"]["uncertainty"][2] == 50_000 and known["late_ranks"] == [2]


def test_a_missing_rank_and_one_that_left_out_a_call(path, rng):
    run = Run(4, rtt=UNSURE[:4])
    rank, step = np.meshgrid([0, 1, 3], np.arange(20), indexing="ij")
    kept = ~((rank == 1) & (step == 7))
    rank, step = rank[kept], step[kept]
    begin = step * MS + rng.integers(0, 1_000, len(rank))
    run.add("exchange", rank, step, begin, begin + 50_000)
    result = trace.stragglers(run.write(path))
    assert result["absent"] == [2] and result["late_ranks"] == [] and result["spread"] < 1_000
    assert result["ranks"]["rank"].tolist() == [0, 1, 3]


def test_tables_of_a_run_of_one_rank_are_empty(path, rng):
    result = trace.stragglers(lockstep(1, 20, 0, rng).write(path))
    assert result["kind"] is None and result["late_ranks"] == [] and result["absent"] == []
    assert all(pandas.DataFrame(result[table]).empty for table in ("ranks", "kinds", "nodes"))


# -- steps


def test_steps_and_their_drift(path, rng):
    run = lockstep(3, 60, np.arange(60) * 2_000, rng)
    result = trace.steps(run.write(path))
    assert result["count"] == 60 and result["max"] == run.length.max() and result["drifts"]
    table = pandas.DataFrame(result["steps"])
    assert table.duration.tolist() == run.length.max(axis=0).tolist() and set(table.ranks) == {3}
    assert table.compute.to_numpy() == pytest.approx(run.work.mean(axis=0) - 1)
    uneven = lockstep(3, 60, np.arange(60) // 6 % 2 * 40_000, rng)  # slow in every other tenth, the last of them
    result = trace.steps(uneven.write(path))
    assert 0.14 < result["drift"] < result["drift_noise"] and not result["drifts"]


@pytest.mark.filterwarnings("error")
def test_steps_that_last_no_time_do_not_drift(path):
    """A coarse clock, or events of the program's own, may say so."""
    at = np.arange(40) * 100
    result = trace.steps(Run(2).add("step", [[0], [1]], range(40), at, at).write(path))
    assert (result["median"], result["drift"], result["drift_noise"], result["drifts"]) == (0, None, None, False)
    found = trace.spikes(Run(1).add("step", 0, range(9), 0, [0] * 8 + [100]).write(path.with_name("b.h5")))
    assert (found["count"], found["spikes"]["duration"]) == (1, 100) and np.isnan(found["spikes"]["ratio"]).all()


def test_a_spike_and_who_made_it(path, rng):
    delay = np.zeros((6, 50), np.int64)
    delay[4, 23] = 900_000
    result = trace.spikes(lockstep(6, 50, delay, rng).write(path))
    row = {name: column.tolist() for name, column in result["spikes"].items()}
    assert (row["step"], row["cause"], row["rank"]) == ([23], ["rank"], [4])
    assert (row["phase"], row["ranks"]) == (["compute"], [1])
    assert row["phase_excess"][0] == pytest.approx(900_000, rel=0.01)


def test_a_spike_of_all_ranks_and_one_of_the_network(path, rng):
    delay = np.zeros((6, 50), np.int64)
    delay[:, 10] = 700_000
    run = lockstep(6, 50, delay, rng)
    begin = 2 * 10**12
    run.add("step", np.arange(6), 60, begin, begin + 2 * MS)
    run.add("compute", np.arange(6), 60, begin, begin + 200_000)
    run.add("exchange", np.arange(6), 60, begin + 200_000, begin + 2 * MS)
    result = trace.spikes(run.write(path))["spikes"]
    assert result["step"].tolist() == [60, 10] and result["cause"].tolist() == ["communication", "ranks"]
    assert result["ranks"].tolist() == [6, 6] and result["rank"][0] == -1


def test_no_spike_in_even_steps(path, rng):
    assert trace.spikes(lockstep(4, 30, 0, rng).write(path))["count"] == 0
    with pytest.raises(InvalidArgument, match="threshold must be above 1, got nan"):
        trace.spikes(path, float("nan"))


def test_heatmap(path, rng):
    run = lockstep(10, 40, delays(10, 40, r7=60_000), rng)
    run.write(path)
    durations = trace.heatmap(path)
    assert np.array_equal(durations["matrix"], run.length) and durations["units"] == "ns"
    compute = trace.heatmap(path, "compute", max_ranks=5, max_steps=8)
    assert compute["matrix"].shape == (5, 8) and compute["rank"].tolist() == [0, 2, 4, 6, 8]
    assert compute["matrix"] == pytest.approx((run.work - 1).reshape(5, 2, 8, 5).mean(axis=(1, 3)))
    late = trace.heatmap(path, "lateness")
    assert late["matrix"].mean(axis=1).argmax() == 7 and late["clock_uncertainty"] == 0
    with pytest.raises(InvalidArgument, match="value must be one of duration"):
        trace.heatmap(path, "colour")
