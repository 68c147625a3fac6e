"""The journal against cuts and flipped bits: a reader gets written records, or the place of the damage."""

import os

import numpy as np
import pytest

from mpicomp.errors import CorruptFile, RefusedOverwrite
from mpicomp.trace import journal, schema
from mpicomp.trace.journal import Journal


def small_journal(plant):
    """Three batches of two events, a metric and an end."""
    own = plant(0, offsets=[(5, 7, 11)])
    for batch in range(3):
        own.events(("compute", 20 * batch, 20 * batch + 5, batch), ("exchange", 20 * batch + 5, 20 * batch + 9, batch))
    return own.metric("loss", 0.5, 0.25).done().path


def test_round_trip(plant):
    read = Journal(small_journal(plant))
    assert (read.rank, read.status, read.damage, read.n_events, read.n_metrics) == (0, "closed", "", 6, 2)
    assert read.head["run"]["title"] == "planted"
    assert read.clock == [{"t_local": 5, "offset": 7, "rtt": 11}]
    assert read.names == {0: "loss"}
    assert [read.labels[code][0] for code in read.events()["label"]] == ["compute", "exchange"] * 3
    np.testing.assert_array_equal(read.events()["t_start"], [0, 5, 20, 25, 40, 45])
    np.testing.assert_array_equal(read.metrics()["value"], [0.5, 0.25])


def test_events_are_sorted_by_their_begin(plant):
    own = plant(0).events(("inner", 5, 6, 0), ("outer", 1, 9, 0)).done()
    np.testing.assert_array_equal(Journal(own.path).events()["t_start"], [1, 5])


def test_every_prefix_is_a_clean_beginning_or_a_clear_error(plant, tmp_path):
    path = small_journal(plant)
    whole, data = Journal(path).events(), path.read_bytes()
    seen = set()
    for length in range(len(data)):
        cut = tmp_path / "cut.mpcj"
        cut.write_bytes(data[:length])
        try:
            read = Journal(cut)
        except CorruptFile as error:
            assert str(cut) in str(error)
            continue
        assert read.status in ("torn", "killed")
        events = read.events()
        np.testing.assert_array_equal(events, whole[: len(events)])
        seen.add(len(events))
    assert seen == {0, 2, 4, 6}


def test_every_flipped_bit_is_noticed(plant, tmp_path):
    path = small_journal(plant)
    whole, data = Journal(path).events(), path.read_bytes()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        bent = tmp_path / "bent.mpcj"
        bent.write_bytes(damaged)
        try:
            read = Journal(bent)
        except CorruptFile:
            continue
        assert read.status == "torn", position
        assert f"of {len(data)}" in read.damage
        events = read.events()
        np.testing.assert_array_equal(events, whole[: len(events)])


def test_an_absurd_length_allocates_nothing(plant):
    path = small_journal(plant)
    with path.open("ab") as file:
        file.write(b"EVNT" + (0xFFFFFFF0).to_bytes(4, "little") + bytes(4))
    assert Journal(path).status == "torn"


@pytest.mark.parametrize("tag, value", [(b"LABL", 3), (b"LABL", [[1]]), (b"NAME", {"a": 1}), (b"EVNT", "odd size")])
def test_whole_frames_of_nonsense_are_refused(plant, tag, value):
    own = plant(0)
    own.frame(tag, value)
    with pytest.raises(CorruptFile):
        Journal(own.path).events()


def test_an_event_without_its_label_is_refused(plant, spool, tmp_path):
    from mpicomp.trace import recover

    own = plant(0)
    own.writer.append(journal.frame(b"EVNT", np.ones(1, schema.EVENT).tobytes()))
    own.done()
    with pytest.raises(CorruptFile, match="labels"):
        recover(spool, tmp_path / "out.h5")
    assert not list(tmp_path.glob("out.h5*"))


def test_no_journal_is_written_over(plant):
    path = small_journal(plant)
    before = path.read_bytes()
    with pytest.raises(RefusedOverwrite, match="trace recover"):
        plant(0)
    assert path.read_bytes() == before


def test_a_failed_write_leaves_whole_frames(plant, monkeypatch):
    own = plant(0).events(("compute", 1, 2, 0))
    size = own.writer.size
    true_write = os.write

    def half_then_full(handle, data):
        if len(data) > 100:
            return true_write(handle, data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half_then_full)
    with pytest.raises(OSError, match="No space"):
        own.writer.append(journal.frame(b"EVNT", bytes(1000 * schema.EVENT.itemsize)))
    monkeypatch.undo()
    assert own.path.stat().st_size == size
    assert Journal(own.path).damage == ""
