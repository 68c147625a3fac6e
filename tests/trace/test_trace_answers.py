"""Traffic, compression, comparison, timelines and standstills with planted answers; and what the commands print."""

import json

import h5py
import numpy as np
import pandas
import pytest
from click.testing import CliRunner
from planted_runs import Run, lockstep

import mpicomp.trace as trace
from mpicomp.cli.trace.command import trace as command
from mpicomp.errors import InvalidArgument, RefusedOverwrite
from mpicomp.trace import schema, views
from mpicomp.trace.analyses import plots
from mpicomp.trace.analyses.timeline import paint

MS = 1_000_000
ONE_FILE = ["steps", "breakdown", "overlap", "collectives", "stragglers", "spikes", "codec", "scheme", "measures",
            "bandwidth", "heatmap", "matrix", "timeline", "efficiency", "hang"]  # fmt: skip


def run(*arguments, **environment):
    return CliRunner(env=environment).invoke(command, [str(argument) for argument in arguments])


# -- traffic


def allreduces(n_ranks=4, latency=10_000, gbs=2.0, sizes=(1 << 16, 1 << 20, 1 << 24), **facts):
    """All-reduces by ring of planted latency and busbw, five of each size; rank 1 comes 7 us late to each."""
    result, begin = Run(n_ranks, **facts), 0
    for nbytes in sizes:
        for _ in range(5):
            lasts = round(latency + 2 * (n_ranks - 1) / n_ranks * nbytes / gbs)
            late = np.where(np.arange(n_ranks) == 1, 7_000, 0)
            result.add("collective", np.arange(n_ranks), -1, begin + late, begin + 7_000 + lasts, algo="ring",
                       nbytes_dense=nbytes, nbytes_sent=2 * (n_ranks - 1) * nbytes // n_ranks)  # fmt: skip
            begin += 7_000 + lasts + 1_000
    return result


def test_collectives_by_size(path):
    table = pandas.DataFrame(trace.collectives(allreduces(latency=0).write(path))["collectives"])
    assert table["size_bin"].tolist() == [1 << 24, 1 << 20, 1 << 16] and set(table.calls) == {5}
    assert table.busbw.to_numpy() == pytest.approx(2.0, rel=1e-3) and set(table.algo) == {"ring"}
    assert table.algbw.to_numpy() == pytest.approx(2.0 / 1.5, rel=1e-3)
    assert table.slowest.to_numpy() == pytest.approx(table.time + 7_000) and set(table.wait) == {7_000 * 3 / 4}


def test_bandwidth_and_its_model(path):
    result = trace.bandwidth(allreduces(latency=10_000, gbs=2.0).write(path))
    model = {name: column[0] for name, column in result["model"].items()}
    assert model["algo"] == "ring" and model["latency"] == pytest.approx(10_000, rel=0.01)
    assert model["busbw"] == pytest.approx(2.0, rel=0.01)
    assert model["half_size"] == pytest.approx(10_000 * 2.0 / 1.5, rel=0.01)
    two = trace.bandwidth(allreduces(sizes=(1 << 16, 1 << 20)).write(path))
    assert np.isnan(two["model"]["busbw"]).all()


@pytest.mark.parametrize("algo", ["ring", "halving_doubling", "direct"])
@pytest.mark.parametrize("n_ranks", [2, 3, 4, 6, 8])
def test_matrix_agrees_with_what_the_schedules_send(path, algo, n_ranks):
    from mpicomp.ops import oracle

    class Link:
        """Notes to whom the schedule sends, and receives nothing."""

        size = n_ranks

        def __init__(self, rank):
            self.rank, self.sent = rank, np.zeros(n_ranks)

        def isend(self, data, peer):
            self.sent[peer] += data.nbytes

        def irecv(self, data, peer):
            pass

        def wait(self, request):
            pass

    from mpicomp import allreduce

    n, expected = 840, np.zeros((n_ranks, n_ranks))
    for rank in range(n_ranks):
        link = Link(rank)
        allreduce.get(algo)(link, np.zeros(n), "sum", oracle, lambda n, dtype=float, slot="": np.zeros(n, dtype))
        expected[rank] = link.sent
    result = Run(n_ranks, ranks_per_node=2)
    result.add("collective", np.arange(n_ranks), 0, 0, 10, algo=algo, nbytes_dense=n * 8,
               nbytes_sent=expected.sum(axis=1).astype(int))  # fmt: skip
    got = trace.matrix(result.write(path))
    assert got["matrix"] == pytest.approx(expected, rel=0.02) and got["unattributed"] == pytest.approx(0, abs=1)
    nodes = np.arange(n_ranks) // 2
    assert trace.matrix(path, by="node")["matrix"].sum() == pytest.approx(expected.sum())
    across = expected[nodes[:, None] != nodes[None, :]].sum() / expected.sum()
    assert got["between_nodes"] == pytest.approx(across, rel=0.02)


def test_codes_are_no_dense_allreduces(path):
    """An all-reduce with an error bound may run the ring of the dense one."""
    planted = allreduces(latency=0, sizes=(1 << 20,))
    planted.add("collective", np.arange(4), -1, 10**9, 10**9 + 10**8, algo="ring", scheme="bound=0.01",
                nbytes_dense=1 << 20, nbytes_sent=1000)  # fmt: skip
    assert trace.bandwidth(planted.write(path))["bandwidth"]["calls"].tolist() == [5]
    busbw = dict(zip(*(trace.collectives(path)["collectives"][name] for name in ("scheme", "busbw")), strict=True))
    assert busbw["none"] == pytest.approx(2.0, rel=1e-3) and np.isnan(busbw["bound=0.01"])
    found = trace.matrix(path)
    assert (found["attributed"], found["unattributed"]) == (5 * 6 * (1 << 20), 4 * 1000)


def test_matrix_says_what_it_does_not_know(path):
    result = trace.matrix(Run(2).add("exchange", [0, 1], 0, 0, 10, nbytes_sent=500).write(path))
    assert (result["attributed"], result["unattributed"]) == (0, 1000) and not result["matrix"].any()


# -- compression


def reducer(n_steps=20, select=300_000, exchange=400_000, dense=8 * MS, sent=80_000):
    """Steps of a Reducer on 4 ranks; half of the update falls into the exchange, and rank 3 selects twice as long."""
    result = Run(4)
    rank, step = np.arange(4)[:, None], np.arange(n_steps)[None, :]
    begin, longest = step * 10 * MS, 2 * select
    selects = np.where(rank == 3, longest, select)
    end = begin + longest + exchange
    result.add("step", rank, step, begin, end, scheme="topk", nbytes_dense=dense, nbytes_sent=sent, nbytes_recv=sent)
    result.add("select", rank, step, begin, begin + selects)
    result.add("exchange", rank, step, begin + selects, end)
    result.add("update", rank, step, end - 100_000, end - 50_000)
    return result


def test_codec_break_even_and_worth(path):
    result = trace.codec(reducer().write(path))
    row = {name: column[0] for name, column in result["schemes"].items()}
    assert (row["scheme"], row["steps"], row["worth"]) == ("topk", 20, "unknown") and "busbw" in result["reason"]
    assert (row["compression"], row["hidden"], row["communication"]) == (600_000, 50_000, 350_000)
    assert row["break_even"] == pytest.approx((1.5 * 8e6 - 80_000) / 600_000) and row["ratio"] == pytest.approx(150)
    assert row["time"] == 1_000_000 and row["cost"] == 950_000 and np.isnan(row["density"])
    slow, fast = (trace.codec(path, busbw=gbs)["schemes"] for gbs in (1.0, 40.0))
    assert (slow["worth"][0], fast["worth"][0]) == ("yes", "no") and slow["speedup"][0] == pytest.approx(12 / 0.95)
    with pytest.raises(InvalidArgument, match="above 0"):
        trace.codec(path, busbw=-1)


def test_codec_tells_reducers_of_one_step_apart(path):
    planted = Run(2)
    for step in range(3):
        for begin in 0, 100:
            planted.add("step", [0, 1], step, 1000 * step + begin, 1000 * step + begin + 50, scheme="topk",
                        nbytes_dense=4000, nbytes_sent=40)  # fmt: skip
    row = {name: column[0] for name, column in trace.codec(planted.write(path))["schemes"].items()}
    assert (row["steps"], row["n_ranks"], row["ratio"], row["time"]) == (6, 2, 100, 50)


@pytest.mark.parametrize("sent", [4000, 0], ids=["MPI", "shared memory"])
def test_codec_counts_the_steps_that_exchange(path, sent):
    """One in four, such as those of local SGD: the median step would send nothing and be free."""
    planted = Run(2)
    for step in range(20):
        begin, exchanges = 1000 * step, step % 4 == 3
        planted.add("step", [0, 1], step, begin, begin + (900 if exchanges else 100), scheme="localsgd",
                    nbytes_dense=4000, nbytes_sent=sent if exchanges else 0)  # fmt: skip
        planted.add("select", [0, 1], step, begin, begin + 100)
        if exchanges:
            planted.add("exchange", [0, 1], step, begin + 100, begin + 900)
    row = {name: column[0] for name, column in trace.codec(planted.write(path), busbw=20)["schemes"].items()}
    assert (row["steps"], row["sent"], row["time"], row["compression"]) == (20, sent / 4, 300, 100)
    assert (row["communication"], row["cost"], row["worth"]) == (200, 300, "no")
    assert row["break_even"] == pytest.approx(30 if sent else np.nan, nan_ok=True)
    assert np.isnan(row["ratio"]) == (not sent)


def test_codec_says_what_no_link_carried(path, capsys):
    """One rank sends nothing; ranks of a node may share memory; and a scheme may send more than it saves."""
    for n_ranks, sent, scheme, pays in (1, 0, "topk", "-"), (2, 0, "topk", "-"), (2, 9000, "signsgd", "never"):
        planted = Run(n_ranks)
        rank = list(range(n_ranks))
        planted.add("step", rank, 0, 0, 900, scheme=scheme, nbytes_dense=4000, nbytes_sent=sent)
        planted.add("select", rank, 0, 0, 100).write(path)
        shown = views.codec(trace.codec(path))
        assert shown.grids[0].rows(20)[-1] == ["pays below", pays]
        assert not any("GB/s" in fact.text for fact in shown.facts)
        alone = trace.codec(path, busbw=1.0)
        assert (alone["schemes"]["worth"][0] == "unknown" and "one rank" in alone["reason"]) == (n_ranks == 1)
        path.unlink()


def test_codec_takes_a_dense_scheme_in_shared_memory_as_reference(path):
    planted = Run(2)
    for begin, scheme, lasts in (0, "dense", 800), (1000, "half", 400):
        planted.add("step", [0, 1], begin // 1000, begin, begin + lasts, scheme=scheme, nbytes_dense=4000)
        planted.add("exchange", [0, 1], begin // 1000, begin, begin + lasts)
    table = trace.codec(planted.write(path))["schemes"]
    assert dict(zip(table["scheme"], table["worth"], strict=True)) == {"dense": "even", "half": "yes"}
    assert "itself dense" in table["basis"] and "steps of dense in this trace" in table["basis"]


def test_codec_is_judged_by_the_trace_itself(path):
    planted = reducer().metric("density", [0.01] * 10)
    planted.add("collective", np.arange(4), -1, 10**10, 10**10 + 3 * MS, algo="ring", nbytes_dense=8 * MS,
                nbytes_sent=12 * MS)  # fmt: skip
    row = {name: column[0] for name, column in trace.codec(planted.write(path))["schemes"].items()}
    assert row["dense_time"] == pytest.approx(3 * MS) and row["worth"] == "yes" and "ring" in row["basis"]
    assert row["density"] == pytest.approx(0.01)


@pytest.mark.parametrize("times", [1.5, 10])
def test_codec_takes_the_all_reduces_of_the_nearest_size(path, times):
    """Long vectors reach a greater bandwidth."""
    planted = reducer()
    for number, (factor, rate) in enumerate(((times, 10), (1, 1), (0.75, 5))):
        begin = 10**10 * (1 + number)
        planted.add("collective", np.arange(4), -1, begin, begin + int(3 * MS * factor / rate), algo="ring",
                    nbytes_dense=int(8 * MS * factor), nbytes_sent=int(12 * MS * factor))  # fmt: skip
    row = {name: column[0] for name, column in trace.codec(planted.write(path))["schemes"].items()}
    assert row["dense_time"] == pytest.approx(3 * MS)


def test_measures_side_by_side(path):
    planted = Run(2).add("step", [0, 1], 0, 0, 10)
    planted.metric("memory_norm", np.arange(1, 41.0)).metric("loss", [*np.linspace(1, 0.5, 39), np.inf]).write(path)
    result = trace.measures(path)
    table = pandas.DataFrame(result["steps"])
    assert table.memory_norm.tolist() == list(range(1, 41)) and table.step.tolist() == list(range(40))
    assert any("still grows" in remark for remark in result["remarks"])
    assert any("loss was infinite in 1" in remark for remark in result["remarks"])
    assert "measures=N" in trace.measures(Run(1).add("step", 0, 0, 0, 1).write(path))["remarks"][0]


# -- two traces


def test_diff_finds_the_slower_phase_and_nothing_else(tmp_path, rng):
    """Both have the same steps in another order, a rank's computation in b 100 ns longer: a quarter of the noise."""
    delay = rng.integers(0, 5_000, (4, 101))
    a = lockstep(4, 101, delay, rng, jitter=1).write(tmp_path / "a.h5")
    delay[:, 1:] = delay[:, rng.permutation(np.arange(1, 101))] + 100  # the first step is left out
    b = lockstep(4, 101, delay, rng, jitter=1, transfer=80_000).write(tmp_path / "b.h5")
    result = trace.diff(a, b)
    table = pandas.DataFrame(result["phases"]).set_index("kind")
    assert table.verdict["exchange"] == table.verdict["step"] == "slower" and table.verdict["compute"] == "same"
    assert table.change["exchange"] == pytest.approx(30_000) and table.change["compute"] == pytest.approx(100)
    assert result["steps_a"] == 100
    assert trace.diff(b, a)["phases"]["verdict"][0] == "faster"
    assert set(trace.diff(a, a)["phases"]["verdict"]) == {"same"}


def test_diff_of_new_and_gone_phases_and_of_few_steps(tmp_path):
    a = Run(1).add("step", 0, range(5), np.arange(5) * 100, np.arange(5) * 100 + 50)
    a.add("select", 0, range(5), np.arange(5) * 100, np.arange(5) * 100 + 20).write(tmp_path / "a.h5")
    b = Run(2).add("step", 0, range(5), np.arange(5) * 100, np.arange(5) * 100 + 50).write(tmp_path / "b.h5")
    result = trace.diff(tmp_path / "a.h5", b)
    verdicts = dict(zip(result["phases"]["kind"], result["phases"]["verdict"], strict=True))
    assert verdicts["select"] == "gone" and verdicts["step"] == "unknown" and result["different"]["n_ranks"] == [1, 2]


def test_diff_without_a_step_after_those_left_out(tmp_path):
    Run(1).add("step", 0, 0, 0, 50).write(tmp_path / "a.h5")
    result = run("diff", tmp_path / "a.h5", tmp_path / "a.h5")
    assert result.exit_code == 0 and "no step to compare after the first --skip steps" in result.output
    document = json.loads(run("diff", tmp_path / "a.h5", tmp_path / "a.h5", "--json").output)
    assert document["steps_a"] == document["steps_b"] == 0 and document["phases"] == {}


def test_diff_of_events_without_duration(tmp_path):
    path = Run(1).add("step", 0, range(5), np.arange(5) * 100, np.arange(5) * 100 - 1).write(tmp_path / "a.h5")
    assert trace.diff(path, path, skip=0)["steps_a"] == 5


@pytest.mark.parametrize("step", ["--5", "²"])
def test_a_step_that_is_no_number(planted_trace, step):
    result = run("timeline", planted_trace, f"--step={step}")
    assert result.exit_code == 1 and result.output.startswith("Error: ") and step in result.output


# -- pictures


def test_timeline_of_the_slowest_step(path, rng):
    delay = np.zeros((3, 20), np.int64)
    delay[1, 12] = MS
    planted = lockstep(3, 20, delay, rng)
    result = trace.timeline(planted.write(path), step="slowest")
    spans = pandas.DataFrame(result["spans"])
    assert result["step"] == 12 and result["duration"] == planted.length[:, 12].max()
    compute = spans[(spans["rank"] == 1) & (spans.kind == "compute")]
    assert (compute.end - compute.begin).tolist() == [planted.work[1, 12] - 1]
    cells = paint(result["spans"], result["ranks"], result["duration"], 50)
    kinds = np.append(result["spans"]["kind"], "")[cells]
    assert (kinds[1] == "compute").sum() > 40 and (kinds[0] == "exchange").sum() > 35
    assert trace.timeline(path, step=3, ranks=[2])["ranks"].tolist() == [2]
    for wrong in ({"step": 77}, {"step": "late"}, {"ranks": [9]}):
        with pytest.raises(InvalidArgument, match="must be"):
            trace.timeline(path, **wrong)


@pytest.mark.parametrize("name", ["heatmap", "matrix", "timeline", "bandwidth"])
def test_pictures_are_written_whole_and_never_over_another(tmp_path, name):
    pytest.importorskip("matplotlib")
    planted = allreduces()
    planted.add("step", np.arange(4), 0, 0, 10**9).write(tmp_path / "run.h5")
    output = tmp_path / "out.png"
    assert run(name, tmp_path / "run.h5", "--png", output).exit_code == 0
    assert output.read_bytes().startswith(b"\x89PNG") and {p.name for p in tmp_path.iterdir()} == {"out.png", "run.h5"}
    again = run(name, tmp_path / "run.h5", "--png", output)
    assert again.exit_code == 1 and "exists already" in again.output
    assert run(name, tmp_path / "run.h5", "--png", output, "--force").exit_code == 0
    with pytest.raises(InvalidArgument, match="must end in"):
        plots.check(tmp_path / "out.bmp", False)
    with pytest.raises(RefusedOverwrite):
        plots.check(output, False)


# -- standstills


def test_hang_names_the_rank_that_did_not_come(path):
    planted = Run(4, status=["killed"] * 4)
    planted.add("step", np.arange(4), 6, 0, 100).add("compute", [0, 1, 3], 7, 100, 150)
    planted.open = [(rank, b"exchange" if rank != 2 else b"compute", 7, 200, 10**9) for rank in range(4)]
    result = trace.hang(planted.write(path))
    assert result["suspects"] == [2] and "wait in exchange" in result["why"] and not result["finished"]
    assert result["last_step"] == result["furthest_step"] == 6
    assert result["ranks"]["in"].tolist() == ["exchange", "exchange", "compute", "exchange"]
    assert result["ranks"]["behind"].tolist() == [0, 0, 50, 0]


def test_hang_names_calls_that_do_not_fit_and_ranks_behind(path):
    planted = Run(4, status=["killed"] * 4).add("step", np.arange(4), 6, 0, 100)
    planted.open = [(rank, b"allreduce" if rank == 1 else b"agree", 7, 200, 10**9) for rank in range(4)]
    result = trace.hang(planted.write(path))
    assert result["suspects"] == [1] and "3 in agree of step 7" in result["why"]
    planted.open = []
    planted.add("step", [0, 2, 3], 7, 200, 300)
    assert trace.hang(planted.write(path))["suspects"] == [1]


def test_hang_of_journals_and_of_a_missing_rank(spool, plant, tmp_path):
    for rank in (0, 2):
        own = plant(rank, clock="same").events(("step", 0, 100, 4))
        own.frame(b"OPEN", [{"kind": "agree", "step": 5, "t_start": 120, "t": 2 * 10**9}])
    assert run("hang", spool).exit_code == 0
    for given in (spool, trace.recover(spool, tmp_path / "out.h5").path):
        result = trace.hang(given)
        assert result["suspects"] == [1] and result["ranks"]["status"].tolist() == ["killed", "missing", "killed"]
        assert result["ranks"]["in"].tolist() == ["agree", "", "agree"]
    assert len(list(spool.iterdir())) == 2
    with pytest.raises(FileNotFoundError):
        trace.hang(tmp_path / "nothing")


def test_a_signal_hides_nothing(spool, plant):
    """It ends the step that a rank is in, which the rank records as failed."""
    plant.run = {**plant.run, "n_ranks": 2}
    for rank, (kind, step) in enumerate((("agree", 5), ("compute", 5))):
        own = plant(rank).events(("step", 0, 100, 4))
        own.frame(b"OPEN", [{"kind": kind, "step": step, "t_start": 120, "t": 2_000}])
        own.events(("step", 110, 3_000 + rank, 5, 0, 0, 0, schema.ERROR)).done("interrupted")
    result = trace.hang(spool)
    assert result["suspects"] == [1] and result["furthest_step"] == 4 and not result["finished"]
    assert result["ranks"]["in"].tolist() == ["agree", "compute"]


def test_what_was_open_is_forgotten_when_something_was_recorded_after_it(spool, plant, tmp_path):
    own = plant(0).events(("step", 0, 100, 4))
    own.frame(b"OPEN", [{"kind": "agree", "step": 5, "t_start": 120, "t": 2_000}])
    own.events(("step", 120, 3_000, 5))
    plant(1).events(("step", 0, 100, 4)), plant(2)
    result = trace.hang(spool)
    assert result["ranks"]["in"].tolist() == ["", "", ""] and result["ranks"]["step"].tolist() == [5, 4, -1]


def test_a_closed_run_does_not_hang(planted_trace):
    result = trace.hang(planted_trace)
    assert result["finished"] and result["suspects"] == []
    folder = planted_trace.with_name("run.h5.d")  # of a trace in parts, not of journals
    folder.mkdir()
    planted_trace.rename(folder / "part0.h5")
    assert trace.hang(folder)["finished"]


# -- commands


@pytest.mark.parametrize("name", ONE_FILE)
def test_commands_print_tables_and_json(planted_trace, name):
    for width in ("60", "200"):
        result = run(name, planted_trace, COLUMNS=width)
        assert result.exit_code == 0 and "\x1b" not in result.output, result.output
    document = json.loads(run(name, planted_trace, "--json").output)
    assert document and "NaN" not in json.dumps(document)
    assert run(name, "--help").exit_code == 0


@pytest.mark.parametrize("name", [*ONE_FILE, "diff"])
def test_commands_report_what_is_wrong_in_one_line(tmp_path, name):
    (tmp_path / "bad.h5").write_bytes(b"nothing")
    for file in ("bad.h5", "missing.h5"):
        result = run(name, *[tmp_path / file] * (2 if name == "diff" else 1))
        assert result.exit_code == 1 and result.output.startswith("Error: ") and result.output.count("\n") == 1


@pytest.mark.parametrize("name", ONE_FILE)
def test_a_run_of_nothing_is_no_error(plant, spool, tmp_path, name):
    plant(0).done()
    trace.recover(spool, tmp_path / "out.h5")
    result = run(name, tmp_path / "out.h5")
    assert (result.exit_code == 0) != (name == "timeline"), result.output
    assert "Traceback" not in result.output


def test_answers_are_in_the_tables(planted_trace):
    assert "rank 2" in run("stragglers", planted_trace).output
    assert "1000.0" in run("stragglers", planted_trace, "--json").output
    assert "A, 9 in B" in run("diff", planted_trace, planted_trace).output
    wrong = run("timeline", planted_trace, "--ranks", "x")
    assert wrong.exit_code == 2 and "0-3,8" in wrong.output
    assert "e exchange" in run("timeline", planted_trace, "--step", "3", "--ranks", "0-1").output


def test_help_lists_all_commands():
    listed = run("--help").output
    assert all(name in listed for name in [*ONE_FILE, "diff", "report", "recover"] if name != "scheme")


@pytest.mark.parametrize("name", ["steps", "heatmap", "efficiency", "spikes"])
def test_steps_of_ranks_that_do_not_exist_are_refused(planted_trace, name):
    with h5py.File(planted_trace, "r+") as file:
        file["steps/rank"][3] = 7
    result = run(name, planted_trace)
    assert result.exit_code == 1 and "/steps/rank" in result.output and result.output.count("\n") == 1
