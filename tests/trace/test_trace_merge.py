"""From journals to HDF5: order, clocks, missing ranks, files that are never overwritten."""

import os

import h5py
import numpy as np
import pytest

from mpicomp.errors import CorruptFile, RefusedOverwrite
from mpicomp.trace import open_trace, recover, validate
from mpicomp.trace.gather_journals import is_visible
from mpicomp.trace.journal import Journal

SECOND = 10**9


def test_rows_are_sorted_by_rank_and_then_by_begin(plant, spool, tmp_path):
    for rank in (2, 0, 1):
        plant(rank).events(("b", 50 + rank, 60 + rank, 0), ("a", rank, 99, 0)).done()
    merged = recover(spool, tmp_path / "out.h5")
    assert merged.complete and merged.n_events == 6
    with open_trace(tmp_path / "out.h5") as trace:
        events = trace.events("event", "rank", "t_start", "kind")
        kinds = np.array(trace.vocabulary("kind"))[events["kind"]]
        assert trace.file["rank_offset"][:].tolist() == [0, 2, 4, 6]
    assert events["event"].tolist() == list(range(6))
    assert events["rank"].tolist() == [0, 0, 1, 1, 2, 2]
    assert events["t_start"].tolist() == [0, 50, 1, 51, 2, 52]
    assert "".join(kinds) == "ababab"  # although each rank numbered its labels in its own order
    assert validate(tmp_path / "out.h5") == []


def test_clock_offsets_are_interpolated(plant, spool, tmp_path):
    """Rank 1 started 1 s later on its own clock, which runs 1e-4 too slow; rank 2 reads rank 0's clock."""
    start, end = 5 * SECOND, 15 * SECOND
    plant(0, clock="a", offsets=[(start, 0, 0), (end, 0, 0)]).events(("exchange", 10 * SECOND, 11 * SECOND, 0)).done()
    offsets = [(start, SECOND, 200), (end, SECOND + 1_000_000, 300)]
    plant(1, clock="b", offsets=offsets).events(("exchange", 9 * SECOND, 10 * SECOND, 0)).done()
    plant(2, clock="a", offsets=[(start, 777, 4_000), (end, 777, 4_000)]).events(
        ("exchange", 10 * SECOND, 11 * SECOND, 0)
    )
    recover(spool, tmp_path / "out.h5")
    with open_trace(tmp_path / "out.h5") as trace:
        events = trace.events("rank", "t_start")
        assert trace.corrected(events["rank"], events["t_start"]).tolist() == [
            10 * SECOND,
            10 * SECOND + 400_000,
            10 * SECOND,
        ]
        assert trace.clock_uncertainty() == 150


def test_offsets_keep_nanoseconds_after_years_of_uptime(plant, spool, tmp_path):
    t = 3 * 365 * 86_400 * SECOND + 123  # does not fit the 53 bits of a float
    plant(0, clock="a").events(("exchange", t, t + 1, 0)).done()
    plant(1, clock="b", offsets=[(t - 5, -7, 10), (t + 5, -7, 10)]).events(("exchange", t, t + 1, 0)).done()
    recover(spool, tmp_path / "out.h5")
    with open_trace(tmp_path / "out.h5") as trace:
        events = trace.events("rank", "t_start")
        assert trace.corrected(events["rank"], events["t_start"]).tolist() == [t, t - 7]


def test_missing_and_torn_ranks_are_listed(plant, spool, tmp_path):
    plant(0).events(("compute", 0, 1, 0)).done()
    torn = plant(2).events(("compute", 0, 1, 0)).events(("compute", 2, 3, 1))
    with torn.path.open("r+b") as file:
        file.truncate(torn.writer.size - 1)
    merged = recover(spool, tmp_path / "out.h5")
    assert merged.status == {1: "missing", 2: "torn"} and not merged.complete
    assert list(merged.damage) == [str(torn.path)]
    with open_trace(tmp_path / "out.h5") as trace:
        assert trace.status() == ["closed", "missing", "torn"]
        assert trace.attributes["complete"] is False
        assert trace.table("ranks")["n_events"].tolist() == [1, 0, 1]
    assert validate(tmp_path / "out.h5") == []
    assert len(os.listdir(spool)) == 2  # the journals are kept


def test_a_journal_without_head_is_a_missing_rank(plant, spool, tmp_path):
    plant(0).done()
    (spool / "rank00001.mpcj").write_bytes(b"")
    merged = recover(spool, tmp_path / "out.h5")
    assert merged.status == {1: "missing", 2: "missing"} and len(merged.damage) == 1


def test_journals_from_several_folders(plant, tmp_path):
    for rank in range(3):
        plant(rank, spool=tmp_path / f"disk{rank}").events(("compute", 0, 1, 0)).done()
    assert recover([tmp_path / f"disk{rank}" for rank in range(3)], tmp_path / "out.h5").complete


def test_two_runs_are_not_mixed(plant, spool, tmp_path):
    plant(0).done()
    plant(1, run={**plant.run, "run_id": "f" * 32}).done()
    with pytest.raises(CorruptFile, match=r"different runs.*rank00000.*rank00001"):
        recover(spool, tmp_path / "out.h5")


def test_two_journals_of_one_rank(plant, tmp_path):
    for folder in ("a", "b"):
        plant(0, spool=tmp_path / folder).done()
    with pytest.raises(CorruptFile, match="two journals of rank 0"):
        recover([tmp_path / "a", tmp_path / "b"], tmp_path / "out.h5")


@pytest.mark.parametrize("rank", [-1, 3])
def test_a_rank_that_cannot_be(plant, spool, tmp_path, rank):
    plant(rank).done()
    with pytest.raises(CorruptFile, match=f"rank {rank} of 3"):
        recover(spool, tmp_path / "out.h5")


def test_nothing_to_recover(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"NAME\.h5\.spool"):
        recover(tmp_path / "nowhere", tmp_path / "out.h5")
    with pytest.raises(FileNotFoundError, match="no journal"):
        recover(tmp_path, tmp_path / "out.h5")


def test_nothing_is_overwritten(plant, spool, tmp_path):
    plant(0).done()
    for name in ("out.h5", "out.h5.part"):
        (tmp_path / name).write_bytes(b"precious")
        with pytest.raises(RefusedOverwrite, match="force"):
            recover(spool, tmp_path / "out.h5")
        assert (tmp_path / name).read_bytes() == b"precious"
        (tmp_path / name).unlink()
    dangling = tmp_path / "link.h5"
    dangling.symlink_to(tmp_path / "elsewhere.h5")
    with pytest.raises(RefusedOverwrite):
        recover(spool, dangling)
    assert not (tmp_path / "elsewhere.h5").exists()
    (tmp_path / "out.h5").write_bytes(b"old")
    recover(spool, tmp_path / "out.h5", force=True)
    assert validate(tmp_path / "out.h5") == []


def test_a_merge_that_fails_leaves_nothing(plant, spool, tmp_path, monkeypatch):
    plant(0).events(("compute", 0, 1, 0)).done()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mpicomp.trace.write._write_metrics", full)
    with pytest.raises(OSError, match="No space"):
        recover(spool, tmp_path / "out.h5")
    assert os.listdir(tmp_path) == [spool.name]


def test_a_run_without_events(plant, spool, tmp_path):
    plant(0).done()
    recover(spool, tmp_path / "out.h5")
    assert validate(tmp_path / "out.h5") == []


def test_sums_of_bytes_that_no_column_holds(plant, spool, tmp_path):
    for rank in range(3):
        plant(rank).events(("exchange", 0, 1, 0, 0, (1 << 64) - 8, 5), ("step", 0, 1, 0, 0, 7, 0)).done()
    recover(spool, tmp_path / "out.h5")
    with open_trace(tmp_path / "out.h5") as trace:
        sums = trace.table("summary", ["nbytes_sent", "nbytes_recv"])
    assert (sums["nbytes_sent"].tolist(), sums["nbytes_recv"].tolist()) == ([(1 << 64) - 1, 21], [15, 0])


def test_more_names_than_an_enum_can_hold(plant, spool, tmp_path):
    own = plant(0)
    own.events(*((f"a kind with a rather long name {number}", number, number + 1, 0) for number in range(2000))).done()
    recover(spool, tmp_path / "out.h5")
    assert validate(tmp_path / "out.h5") == []
    with open_trace(tmp_path / "out.h5") as trace:
        assert len(trace.vocabulary("kind")) == 2001
        assert h5py.check_enum_dtype(trace.file["events/kind"].dtype) is None


def test_a_rank_sees_only_its_own_runs_journal(plant):
    own = plant(0).done()
    facts = {"path": str(own.path), "size": own.path.stat().st_size}
    run_id = Journal(own.path).run_id
    assert is_visible(facts, run_id)
    assert not is_visible(facts, "f" * 32)
    assert not is_visible({**facts, "size": facts["size"] + 1}, run_id)
    assert not is_visible({**facts, "path": facts["path"] + "x"}, run_id)
