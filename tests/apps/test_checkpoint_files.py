"""Checkpoint files in one process: a kill, damage or a hostile file never gives a wrong state."""

import itertools
import os
import signal
import subprocess
import sys
import time
from functools import partial

import h5py
import numpy as np
import pytest

import mpicomp
from mpicomp import checkpoint
from mpicomp.checkpoint import folder, parts
from mpicomp.checkpoint.redistribute import Keepers, redistribute, sources
from mpicomp.errors import CorruptFile, InvalidArgument

STATE = {
    "model": {"layer.0/w": np.arange(12, dtype=np.float32).reshape(3, 4), "empty": np.empty(0), "one": np.array(7)},
    "random": {"state": {"inc": 2**127 + 1, "words": [1, 2]}, "flags": np.array([True, False]), "best": float("inf")},
    "nothing": {},
}


def stored(tmp_path, state=STATE):
    path = tmp_path / "state.h5"
    parts.write(path, state)
    return path


def read(path):
    return parts.read(path.read_bytes(), path)


def test_what_is_written_is_read(tmp_path):
    back = read(stored(tmp_path))
    assert back.keys() == STATE.keys() and back["random"]["state"] == STATE["random"]["state"]
    assert back["random"]["best"] == float("inf") and back["nothing"] == {}
    for section, entries in STATE.items():
        for name, value in entries.items():
            if hasattr(value, "dtype"):
                got = back[section][name]
                assert got.dtype == value.dtype and got.shape == value.shape and np.array_equal(got, value)
    assert parts.digest(back) == parts.digest(STATE)
    with pytest.raises(Exception, match="exists"):
        parts.write(tmp_path / "state.h5", STATE)


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"..": np.zeros(1)}, "may be empty, '.' or '..', got 'm/..'"),
        ({"x": np.array(["text"])}, "must be an array of numbers"),
        ({"x": np.ones(2, np.longdouble)}, "unused bytes differ between ranks: convert it to float64"),
        ({"x": object()}, "holds arrays, numbers, texts"),
        ({"x\0y": np.zeros(1)}, "may hold no NUL"),
        (np.zeros(1), "dict of sections.* got 'm': ndarray"),
    ],
)
def test_what_cannot_be_saved_is_refused(tmp_path, entries, text):
    with pytest.raises(InvalidArgument, match=text):
        parts.write(tmp_path / "state.h5", {"m": entries})
    assert not (tmp_path / "state.h5").exists()


def external_link(file, other):
    file["arrays/model/x"] = h5py.ExternalLink(str(other), "arrays/model/one")


def soft_link(file, other):
    file["arrays/model/x"] = h5py.SoftLink("/arrays/model/one")


def external_data(file, other):
    file["arrays/model"].create_dataset("x", (8,), "u1", external=[(str(other), 0, 8)])


def virtual(file, other):
    layout = h5py.VirtualLayout((1,), "f8")
    layout[0] = h5py.VirtualSource(str(other), "arrays/model/one", ())
    file["arrays/model"].create_virtual_dataset("x", layout)


def bomb(file, other):
    file["arrays/model"].create_dataset("x", (1 << 38,), "f8")


def compressed(file, other):
    file["arrays/model"].create_dataset("x", data=np.zeros(1 << 20), compression="gzip")


def text(file, other):
    file["arrays/model"].create_dataset("x", data=["a", "b"], dtype=h5py.string_dtype())


def cycle(file, other):
    file["arrays/model/x"] = file["arrays"]


def again_and_again(file, other):
    file["arrays/model/x"] = np.zeros(10_000)
    for number in range(20):
        file[f"arrays/model/x{number}"] = file["arrays/model/x"]


def no_values(file, other):
    del file["values"]


def unknown_section(file, other):
    file["arrays/other/x"] = np.zeros(3)


HOSTILE = [external_link, soft_link, external_data, virtual, bomb, compressed, text, cycle, again_and_again, no_values,
           unknown_section]  # fmt: skip


@pytest.mark.parametrize("change", HOSTILE, ids=lambda change: change.__name__)
def test_a_hostile_file_is_refused(tmp_path, change):
    (tmp_path / "elsewhere").mkdir()
    other, path = stored(tmp_path / "elsewhere"), stored(tmp_path)
    with h5py.File(path, "a") as file:
        change(file, other)
    with pytest.raises(CorruptFile):
        read(path)


def test_no_damage_is_read_as_something_else(tmp_path, alone):
    """Any flipped bit and any cut is noticed, in any file, and the older checkpoint is taken."""
    for step in (1, 2):
        checkpoint.save(alone, tmp_path, step, common=STATE, own={"rank": {"x": np.arange(step)}})
    rng = np.random.default_rng()
    for file in sorted((tmp_path / folder.name_of(2)).iterdir()):
        good = file.read_bytes()
        for _ in range(15):
            data = bytearray(good)
            if rng.random() < 0.3:
                data = data[: rng.integers(len(data))]
            else:
                data[rng.integers(len(data))] ^= 1 << rng.integers(8)
            if bytes(data) == good:
                continue
            file.write_bytes(bytes(data))
            saved = checkpoint.load(alone, tmp_path)
            if saved.step == 2:  # white space of the manifest, say
                assert file.name == folder.MANIFEST and parts.digest(saved.common) == parts.digest(STATE)
            else:
                assert "passed over the checkpoint of step 2" in saved.notes[0]
        file.write_bytes(good)
    assert checkpoint.load(alone, tmp_path).step == 2


def test_an_invented_manifest_is_refused(tmp_path, alone):
    checkpoint.save(alone, tmp_path, 1, common=STATE)
    path = tmp_path / folder.name_of(1) / folder.MANIFEST
    facts = folder.read_manifest(path)
    for change in ({"parts": [["x", 1]]}, {"parts": []}, {"common": None}, {"common": [-1, 0]}, {"format": "other"}):
        folder.write_manifest(path, {**facts, **change})
        with pytest.raises(CorruptFile):
            checkpoint.load(alone, tmp_path)
    for content in (b"", b"[]", b"{}", b"\xff", b'{"manifest": 1, "crc32": 1}', b"[" * 100000):
        path.write_bytes(content)
        with pytest.raises(CorruptFile, match=r"manifest\.json is damaged"):
            checkpoint.load(alone, tmp_path)


def saving_for_ever(comm, root):
    """In a child process: one checkpoint after the other, each with its step in every number."""
    step = 0
    while True:
        step += 1
        checkpoint.save(comm, root, step, common={"model": {"x": np.full(200_000, step)}}, own={"r": {"y": [step]}})


def test_killed_at_any_moment_the_newest_whole_one_is_read(tmp_path, alone):
    rng = np.random.default_rng()
    for trial in range(12):
        root = tmp_path / str(trial)
        child = os.fork()
        if child == 0:
            try:
                saving_for_ever(alone, root)
            finally:
                os._exit(1)
        while not (root / folder.LATEST).exists() and os.waitpid(child, os.WNOHANG)[0] == 0:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        saved = checkpoint.load(alone, root)
        assert saved.notes == [] and (saved.common["model"]["x"] == saved.step).all()
        assert saved.own["r"]["y"] == [saved.step]
        after = checkpoint.save(alone, root, saved.step + 1, common={"model": {"x": np.zeros(3)}})
        assert (root / folder.LATEST).read_text().strip() == after.name


@pytest.mark.parametrize(
    ("where", "name", "expected"),
    [(parts, "write", 1), (folder, "write_manifest", 1), (folder, "replace", 1), (folder, "_set_aside", 3),
     (folder, "_drop", 3)],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_killed_between_the_phases_of_a_save(tmp_path, alone, monkeypatch, where, name, expected):
    """Just before each phase of a save, which is complete from its first rename on."""
    first = 1 if expected == 1 else 2
    for step in range(1, first + 1):
        checkpoint.save(alone, tmp_path, step, common={"model": {"x": np.full(9, step)}})
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(where, name, lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))
        try:
            checkpoint.save(alone, tmp_path, first + 1, common={"model": {"x": np.full(9, first + 1)}})
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    saved = checkpoint.load(alone, tmp_path)
    assert saved.step == expected and saved.notes == [] and saved.common["model"]["x"].tolist() == [expected] * 9
    checkpoint.save(alone, tmp_path, 9, common={})
    assert checkpoint.steps(tmp_path)[-1] == 9 and not list(tmp_path.glob("*9.part"))


def test_what_killed_jobs_left_is_removed_by_the_next_save_of_any_step(tmp_path, alone):
    for left in ("step-000000007.part", "step-000000006.0123abcd.part", "step-000000003.0123abcd.old"):
        (tmp_path / left).mkdir()
    checkpoint.save(alone, tmp_path, 8, common=STATE)
    assert {path.name for path in tmp_path.iterdir()} == {folder.name_of(8), folder.LATEST}


def test_what_a_user_keeps_beside_the_checkpoints_stays(tmp_path, alone):
    """Names that look alike: a checkpoint put by, a download that goes on, a folder that is no checkpoint."""
    kept = {"step-000000001.old", "step-000000001.tar.part", "step-000000001.tar.whole", "step-0000000001", "step-7"}
    for name in kept:
        (tmp_path / name).mkdir()
    for step in (1, 2, 3):
        checkpoint.save(alone, tmp_path, step, common=STATE)
    assert checkpoint.steps(tmp_path) == [2, 3] and checkpoint.load(alone, tmp_path).notes == []
    assert {path.name for path in tmp_path.iterdir()} == {*kept, folder.name_of(2), folder.name_of(3), folder.LATEST}


@pytest.mark.parametrize(
    ("given", "text"),
    [({"step": 5.0}, "step must be a whole number of at least 0 .* got 5.0 and 2"),
     ({"keep": float("inf")}, "keep one of at least 1, got 1 and inf"), ({"keep": 0}, "got 1 and 0"),
     ({"reducers": "topk"}, "reducers must be a dict, got str"), ({"common": None}, "dict of sections, got NoneType"),
     ({"own": {"x": 3}}, "dict of sections.* got 'own:x': int")],
)  # fmt: skip
def test_arguments_that_cannot_be_are_refused_and_nothing_is_written(tmp_path, alone, given, text):
    with pytest.raises(InvalidArgument, match=text):
        checkpoint.save(alone, tmp_path, **{"step": 1, "common": STATE, **given})
    assert list(tmp_path.iterdir()) == []


def test_a_loaded_checkpoint_is_restored_from_another_working_folder(tmp_path, alone, monkeypatch):
    """Files of other ranks and workers are read only then."""
    saver = mpicomp.Reducer(alone, "topk:k=1", workers=2)
    saver.reduce(np.ones((2, 9), np.float32))
    checkpoint.save(alone, tmp_path / "run", 1, common=STATE, reducers={"reducer": saver})
    monkeypatch.chdir(tmp_path)
    saved = checkpoint.load(alone, "run")
    monkeypatch.chdir("/")
    saved.restore(again := mpicomp.Reducer(alone, "topk:k=1", workers=1))
    assert again.state_dict()["memory/0/residual"].sum() == 16


@pytest.mark.parametrize("step", [None, 1], ids=["newest", "step"])
def test_a_checkpoint_that_is_renamed_while_it_is_read(tmp_path, alone, monkeypatch, step):
    """By another job that has just saved it: it is whole under either name."""
    path = checkpoint.save(alone, tmp_path, 1, common=STATE)
    meanwhile(monkeypatch, lambda: whole.rename(path))
    whole = path.rename(f"{path}.whole")
    saved = checkpoint.load(alone, tmp_path, step)
    assert saved.path == path and saved.notes == []


def test_a_checkpoint_that_is_dropped_while_it_is_read(tmp_path, alone, monkeypatch):
    """By another job that saves: its newest is read, and none is called damaged."""
    checkpoint.save(alone, tmp_path, 1, common=STATE)
    meanwhile(monkeypatch, lambda: [checkpoint.save(alone, tmp_path, step, common=STATE) for step in (2, 3)])
    saved = checkpoint.load(alone, tmp_path)
    assert saved.step == 3 and saved.notes == []


def meanwhile(monkeypatch, work):
    """Do it once, just before the next manifest is read."""
    read = folder.read_manifest

    def first(path):
        monkeypatch.setattr(folder, "read_manifest", read)
        work()
        return read(path)

    monkeypatch.setattr(folder, "read_manifest", first)


def test_arrays_that_cannot_be_filled_are_refused_before_any_is(tmp_path, alone):
    checkpoint.save(alone, tmp_path, 1, common={"model": {"x": np.ones(3), "y": np.ones(3)}})
    arrays = {"x": np.zeros(3), "y": np.broadcast_to(0.0, 3)}
    with pytest.raises(InvalidArgument, match="model y is read-only"):
        checkpoint.load(alone, tmp_path).fill("model", arrays)
    assert not arrays["x"].any()


def test_an_old_checkpoint_may_be_a_link_to_another_disk(tmp_path, alone):
    """Dropped in its turn, without an error; what the link leads to is the user's."""
    root, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    first = checkpoint.save(alone, root, 1, common=STATE)
    first.rename(elsewhere)
    first.symlink_to(elsewhere)
    assert checkpoint.load(alone, root).step == 1
    for step in (2, 3):
        checkpoint.save(alone, root, step, common=STATE)
    assert {path.name for path in root.iterdir()} == {folder.name_of(2), folder.name_of(3), folder.LATEST}
    assert (elsewhere / folder.MANIFEST).exists()


WRITER = """
import resource, sys, pathlib, numpy, mpicomp.errors
from mpicomp.checkpoint import parts
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
for attempt in range(3):
    path = pathlib.Path(sys.argv[1]) / f"{attempt}.h5"
    try:
        parts.write(path, {"m": {f"a{i}": numpy.ones(1000) for i in range(100)}})
    except mpicomp.errors.MpicompError as error:
        print(error)
"""


def test_a_disk_that_is_full_before_the_last_array_ends_no_process(tmp_path):
    """A limit on the size of files in place of the disk; HDF5 2.0 by itself crashes when the process ends."""
    done = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout == "".join(f"cannot write {tmp_path}/{n}.h5: File too large\n" for n in range(3))


INTERRUPTED = """
import resource, sys, pathlib, numpy
from mpicomp._util import hdf5
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
try:
    with hdf5.creating(pathlib.Path(sys.argv[1]) / "a.h5") as file:
        file["x"] = numpy.ones(100_000)
        raise KeyboardInterrupt
except BaseException as error:
    print(repr(error))
"""


def test_an_interrupt_on_a_full_disk_stays_one(tmp_path):
    """A training goes on after an error, and would not end."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "KeyboardInterrupt()\n", "")


def killed_before_rename(nth, work):
    """Run ``work`` in a child process that is killed before it renames for the ``nth`` time; whether it was."""
    child = os.fork()
    if child == 0:
        renames = itertools.count()

        def watched(rename):
            def counted(*paths, **options):
                if next(renames) == nth:
                    os.kill(os.getpid(), signal.SIGKILL)
                rename(*paths, **options)

            return counted

        os.rename, os.replace = watched(os.rename), watched(os.replace)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


def test_killed_while_a_step_is_saved_again_a_whole_checkpoint_is_left(tmp_path, alone):
    """Steps 4 and 6 are there and 4 is saved again: before any rename, one of the three is loaded, and it is whole."""
    read = []
    for nth in itertools.count():
        root = tmp_path / str(nth)
        for step in (4, 6):
            checkpoint.save(alone, root, step, common={"model": {"x": np.full(9, step)}})
        again = partial(checkpoint.save, alone, root, 4, common={"model": {"x": np.full(9, 40)}}, keep=1)
        was_killed = killed_before_rename(nth, again)
        saved = checkpoint.load(alone, root)
        read.append((saved.step, int(saved.common["model"]["x"][0])))
        assert saved.notes == [] and saved.step in checkpoint.steps(root)
        after = checkpoint.save(alone, root, saved.step, common={"model": {"x": np.full(9, 7)}})
        assert checkpoint.load(alone, root).common["model"]["x"].tolist() == [7] * 9
        assert (root / folder.LATEST).read_text().strip() == after.name and not list(root.glob("*.whole"))
        if not was_killed:
            break
    assert read == sorted(read, key=[(6, 6), (4, 4), (4, 40)].index) and len(set(read)) == 3


@pytest.mark.parametrize(("had", "now"), [([1, 1, 1], [1]), ([1], [1, 1, 1]), ([3, 2, 2], [2, 2]), ([2], [1, 1])])
def test_every_worker_goes_somewhere(had, now):
    taken = [old for new in range(sum(now)) for old in sources(sum(had), sum(now), new)]
    assert taken == list(range(sum(had)))
    rng = np.random.default_rng()
    memories = rng.integers(-9, 9, (sum(had), 6)).astype(np.float32)

    def old(rank):
        first = sum(had[:rank])
        entries = {f"memory/{i}/residual": memories[first + i] for i in range(had[rank])}
        return {"scheme": "topk:k=2", "step": 5, "workers": had[rank], **entries}

    states = [redistribute(old, Keepers(had), Keepers(now), rank, {}) for rank in range(len(now))]
    total = sum(value for state in states for name, value in state.items() if name.endswith("residual"))
    assert np.array_equal(total, memories.sum(axis=0)) and [state["workers"] for state in states] == now
    assert memories.dtype == total.dtype


def test_pieces_are_cut_anew():
    whole = np.arange(10.0)

    def old(rank):
        start, stop = ((0, 4), (4, 7), (7, 10))[rank]
        return {"scheme": "onebit:memory=none", "step": 1, "workers": 1, "exchange/residual": whole[start:stop],
                "exchange/start": np.array(start)}  # fmt: skip

    for now in (1, 2, 5):
        states = [redistribute(old, Keepers([1, 1, 1]), Keepers([1] * now), rank, {}) for rank in range(now)]
        assert np.array_equal(np.concatenate([state["exchange/residual"] for state in states]), whole)
        sizes = [state["exchange/residual"].size for state in states]
        assert [int(state["exchange/start"]) for state in states] == [sum(sizes[:rank]) for rank in range(now)]


def test_pieces_of_which_nothing_was_sent_yet():
    def old(rank):
        return {"scheme": "onebit:memory=none", "step": 1, "workers": 1, "exchange/residual": np.empty(0),
                "exchange/start": np.array(-1)}  # fmt: skip

    for rank in range(3):
        state = redistribute(old, Keepers([1, 1]), Keepers([1, 1, 1]), rank, {})
        assert int(state["exchange/start"]) == -1 and state["exchange/residual"].size == 0


@pytest.mark.parametrize(("scheme", "names"), [("dgc", ("residual", "velocity")), ("topk", ("residual",))])
def test_an_old_rank_whose_memory_is_missing(scheme, names):
    """Its part would be taken for zero."""
    def old(rank):
        entries = {f"memory/{worker}/{name}": np.ones(6) for worker in range(2) for name in names}
        if rank == 1:
            del entries[f"memory/1/{names[-1]}"]
        return {"scheme": scheme, "step": 5, "workers": 2, **entries}

    with pytest.raises(InvalidArgument, match=f"the state of step 5 of {scheme} .*lacks memory/1/{names[-1]}: take"):
        redistribute(old, Keepers([2, 2]), Keepers([1]), 0, {})
