"""Traces of thousands of ranks: exact answers in bounded memory, from one file or from a folder of them."""

import json
import os
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from synthetic import KINDS, write_journals

import mpicomp.trace
from mpicomp.cli.trace.command import trace as command
from mpicomp.errors import CorruptFile, InvalidArgument, RefusedOverwrite
from mpicomp.trace import merge_journals, open_trace, recover, validate

RANKS, EVENTS = 2048, 2000
MEMORY_LIMIT = 1 << 30

ANALYSE = """
import json, re, sys, time
from pathlib import Path
begin = time.monotonic()
from mpicomp.trace import report, summary
rows = summary(sys.argv[1])
report(sys.argv[1])
# Not ru_maxrss, which begins with what the process had that started this one.
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
print(json.dumps({"rows": rows, "seconds": time.monotonic() - begin, "peak": peak}))
"""


def seed_of(request):
    """Fresh in every run, printed where a test fails."""
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    return seed


def by_kind(rows):
    names = ("count", "total", "nbytes_sent")
    sums = {kind: dict.fromkeys(names, 0) for kind in KINDS}
    for row in rows:
        for name in names:
            sums[row["kind"]][name] += row[name]
    return sums


@pytest.mark.timeout(900)
@pytest.mark.long("thousands of journals")
def test_thousands_of_ranks_in_less_than_a_gigabyte(tmp_path, request, capsys):
    expected = write_journals(tmp_path / "spool", RANKS, EVENTS, seed_of(request))
    begin = time.monotonic()
    merged = recover(tmp_path / "spool", tmp_path / "run.h5")
    merging = time.monotonic() - begin
    assert merged.complete and merged.n_events == RANKS * EVENTS
    done = subprocess.run(
        [sys.executable, "-c", ANALYSE, tmp_path / "run.h5"], capture_output=True, text=True, timeout=800, check=True
    )
    said = json.loads(done.stdout)
    size = (tmp_path / "run.h5").stat().st_size
    with capsys.disabled():
        print(f"\n{RANKS} ranks x {EVENTS} events: merged in {merging:.1f} s to {size / 1e6:.0f} MB, "
              f"summary, report in {said['seconds']:.1f} s, {said['peak'] / 1e6:.0f} MB of memory at most")  # fmt: skip
    assert by_kind(said["rows"]) == expected
    assert said["peak"] < MEMORY_LIMIT


@pytest.fixture
def both(tmp_path, request):
    """The same run as one file and as a folder of files of at most three ranks."""
    expected = write_journals(tmp_path / "spool", 10, 40, seed_of(request))
    recover(tmp_path / "spool", tmp_path / "one.h5")
    merged = recover(tmp_path / "spool", tmp_path / "many.h5", max_events=120)
    assert merged.path == tmp_path / "many.h5.d"
    assert sorted(os.listdir(merged.path)) == [f"part{part:05d}.h5" for part in range(4)]
    return tmp_path / "one.h5", merged.path, expected


def test_a_folder_says_what_one_file_says(both):
    one, many, expected = both
    assert validate(many) == validate(one) == []
    for path in (many, many.with_name("many.h5")):  # the name that was asked for leads to the folder, too
        assert by_kind(mpicomp.trace.summary(path)) == expected
        assert mpicomp.trace.summary(path, ("rank", "kind")) == mpicomp.trace.summary(one, ("rank", "kind"))
        single, several = mpicomp.trace.report(one), mpicomp.trace.report(path)
        for result in (single, several):
            for name in ("n_parts", "files", "last_rank"):
                del result["run"][name]
        assert several == single
    with open_trace(one) as alone, open_trace(many) as parts:
        for name, column in alone.events().items():
            np.testing.assert_array_equal(parts.events(name)[name], column)


def test_every_part_is_a_trace_of_its_own_and_says_that_it_is_one(both):
    _, many, expected = both
    parts = sorted(many.iterdir())
    assert [validate(part) for part in parts] == [[]] * 4
    rows = [row for part in parts for row in mpicomp.trace.summary(part)]
    assert by_kind(rows) == expected
    with h5py.File(parts[1]) as file:
        assert (file.attrs["part"], file.attrs["n_parts"]) == (1, 4)
        assert (file.attrs["first_rank"], file.attrs["last_rank"]) == (3, 5)
        assert set(file["events/rank"][:]) == {3, 4, 5} and file["events/event"][0] == 120
    said = CliRunner().invoke(command, ["info", str(parts[1])])
    assert "part 2 of 4: events of ranks 3-5 only" in said.output


def test_every_command_takes_the_folder(both):
    for name in ("info", "summary", "report", "validate"):
        for arguments in ([], ["--json"]):
            result = CliRunner().invoke(command, [name, str(both[1]), *arguments])
            assert result.exit_code == 0, result.output


def test_a_missing_part_is_named(both):
    (both[1] / "part00002.h5").unlink()
    with pytest.raises(CorruptFile, match=r"expected 4 files, got 3: \[2\] are missing"):
        mpicomp.trace.info(both[1])


def test_parts_of_two_runs_are_not_mixed(both):
    with h5py.File(both[1] / "part00002.h5", "r+") as file:
        file.attrs["run_id"] = np.bytes_("another")
    with pytest.raises(CorruptFile, match="2 runs"):
        mpicomp.trace.info(both[1])


def test_an_empty_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="folder without part"):
        mpicomp.trace.info(tmp_path)


def test_a_folder_is_not_replaced_silently(both):
    _, many, _ = both
    spool, output = many.with_name("spool"), many.with_name("many.h5")
    before = (many / "part00000.h5").read_bytes()
    for max_events in (120, 10**6):
        with pytest.raises(RefusedOverwrite, match=r"many\.h5\.d exists"):
            recover(spool, output, max_events=max_events)
    assert (many / "part00000.h5").read_bytes() == before
    (many / "notes.txt").write_text("mine")
    with pytest.raises(RefusedOverwrite, match="more than a trace"):
        recover(spool, output, force=True)
    (many / "notes.txt").unlink()
    assert recover(spool, output, force=True, max_events=200).path == many and len(os.listdir(many)) == 2
    assert recover(spool, output, force=True).path == output and not many.exists()
    assert recover(spool, output, force=True, max_events=200).path == many and not output.exists()
    assert sorted(os.listdir(many.parent)) == ["many.h5.d", "one.h5", "spool"]


def test_a_folder_that_fails_leaves_nothing(both, monkeypatch):
    folder = both[1].parent
    calls = []

    def full(*_):
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("mpicomp.trace.write._write_metrics", full)
    with pytest.raises(OSError, match="No space"):
        recover(folder / "spool", folder / "third.h5", max_events=120)
    assert not list(folder.glob("third*")) and len(calls) == 3


def test_recover_takes_the_limit(both):
    folder = both[1].parent
    arguments = ["recover", str(folder / "spool"), "-o", str(folder / "cli.h5"), "--max-events", "200", "--json"]
    said = json.loads(CliRunner().invoke(command, arguments).output)
    assert said["path"] == str(folder / "cli.h5.d") and len(os.listdir(said["path"])) == 2


@pytest.mark.parametrize(
    "n_events, limit, expected",
    [([5, 5, 5], 10, [(0, 2), (2, 3)]), ([50, 1, 1], 10, [(0, 1), (1, 3)]), ([0, 0], 1, [(0, 2)]), ([7], 1, [(0, 1)])],
)
def test_split(n_events, limit, expected):
    assert merge_journals.split(n_events, limit) == [range(*pair) for pair in expected]


def test_a_limit_that_cannot_be(tmp_path, request):
    write_journals(tmp_path / "spool", 1, 4, seed_of(request))
    with pytest.raises(InvalidArgument, match="max_events must be at least 1, got 0"):
        recover(tmp_path / "spool", tmp_path / "out.h5", max_events=0)
    assert not (tmp_path / "out.h5").exists()


def test_the_recorder_makes_a_folder_too(solo, tmp_path):
    with mpicomp.trace.Recorder(solo, tmp_path / "run.h5", max_events=1) as recorder:
        for _ in range(3):
            recorder.event("compute", 1, 2)
    assert mpicomp.trace.info(tmp_path / "run.h5")["n_events"] == 3  # one rank is never cut in two
    assert os.listdir(tmp_path) == ["run.h5"]
