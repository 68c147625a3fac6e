"""Checkpoints over ranks: resumed bit for bit, on other numbers of ranks with the same sum, and whole or absent."""

import json
import os
import resource
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

import mpicomp
from mpicomp import checkpoint
from mpicomp._util.plurals import count
from mpicomp.errors import CorruptFile, Disagreement, InvalidArgument, MpicompError

STEPS = 3
SCHEMES = [
    "dense", "scalecom:chunk=7,beta=0.5", "topk:density=0.1,schedule=accordion,interval=2", "dgc:density=0.05",
    "dgc:density=0.05,dense=1d,nesterov=yes", "powersgd:rank=2", "onebit", "oktopk:density=0.1,period=2", "qsgd",
    "error-reset:density=0.1,period=2",
]  # fmt: skip
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size > 4, reason="nothing here is new on more than 4 ranks")


def workers_here(comm):
    """Two on rank 0, one on the others."""
    return 2 if comm.rank == 0 else 1


def gradients(seed, comm, step, workers=None):
    count = workers or workers_here(comm)
    rng = np.random.default_rng([seed, comm.rank, step])
    shapes = {"matrix": (12, 9), "vector": (31,)}
    rows = {name: rng.standard_normal((count, *shape)).astype(np.float32) for name, shape in shapes.items()}
    return rows if count > 1 else {name: row[0] for name, row in rows.items()}


def descend(reducer, model, comm, seed, steps):
    for step in steps:
        for name, mean in reducer.reduce(gradients(seed, comm, step)).items():
            model[name] -= np.float32(0.1) * mean


def begin():
    return {"matrix": np.ones((12, 9), np.float32), "vector": np.zeros(31, np.float32)}


def no_room(*given):
    raise MemoryError("no room")


def whole(comm, root, step=1, **given):
    return checkpoint.save(comm, root, step, common={"model": {"x": np.arange(9.0) + step}}, **given)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_resume_on_as_many_ranks_is_bit_identical(comm, folder, seed, scheme):
    straight, model = mpicomp.Reducer(comm, scheme, workers=workers_here(comm)), begin()
    descend(straight, model, comm, seed, range(STEPS))
    same = checkpoint.common_result(straight)
    assert same == (not scheme.startswith("error-reset"))
    state = {"model": model, "data": {"position": STEPS}}
    common, own = (state, {}) if same else ({}, state)
    checkpoint.save(comm, folder, STEPS, common=common, own=own, reducers={"reducer": straight})
    descend(straight, model, comm, seed, range(STEPS, 2 * STEPS))

    again, saved = mpicomp.Reducer(comm, scheme, workers=workers_here(comm)), checkpoint.load(comm, folder)
    restored = (saved.common if same else saved.own)["model"]
    if same:
        saved.fill("model", resumed := begin())
    else:
        resumed = restored
    saved.restore(again)
    assert saved.notes == [] and saved.same_ranks and again.step == STEPS
    descend(again, resumed, comm, seed, range(STEPS, 2 * STEPS))
    assert all(resumed[name].tobytes() == model[name].tobytes() for name in model)
    before, after = straight.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


def part_of(world, size):
    """A communicator of the first ranks, None on the others."""
    part = world.Split(0 if world.rank < size else 1, world.rank)
    return mpicomp.Comm(part) if world.rank < size else None


def integers(seed, workers, worker, n=40):
    rng = np.random.default_rng([seed, worker])
    return rng.integers(-9, 10, (workers, n) if workers > 1 else n).astype(np.float32)


def memory_sum(comm, reducer, name="residual"):
    state = reducer.state_dict()
    mine = (value for key, value in state.items() if key.endswith(name) and "memory/" in key)
    total = sum(mine, np.zeros(40))  # a worker that is new has nothing yet
    comm.Allreduce(MPI.IN_PLACE, total)
    return total


@pytest.mark.parametrize("scheme", ["topk:k=3", "scalecom:chunk=8", "dgc:density=0.1", "oktopk:k=4"])
def test_on_other_ranks_the_sum_of_the_memories_is_kept(comm, world, folder, seed, scheme):
    """From all ranks to fewer, and from fewer to all; with one worker a rank, so their number changes too."""
    n = world.size
    for had, now in sorted({(1, n), (n, 1), (n, max(1, n - 1))}):
        saver, root = part_of(world, had), folder / f"{scheme[:4]}-{had}-{now}"
        expected = {}
        if saver:
            reducer = mpicomp.Reducer(saver, scheme)
            reducer.reduce(integers(seed, 1, saver.rank))
            whole(saver, root, reducers={"reducer": reducer})
            names = ["residual", "velocity"] if scheme.startswith("dgc") else ["residual"]
            expected = {name: memory_sum(saver, reducer, name) for name in names}
        expected = comm.bcast(expected)
        reader = part_of(world, now)
        if reader:
            again, saved = mpicomp.Reducer(reader, scheme), checkpoint.load(reader, root)
            saved.restore(again)
            for name, total in expected.items():
                np.testing.assert_array_equal(memory_sum(reader, again, name), total)
            given = f"{count(had, 'worker')} on {count(had, 'rank')} were given to {count(now, 'worker')} on"
            said = any(given in note for note in saved.notes)
            assert said == (had != now)
            again.reduce(integers(seed, 1, reader.rank))  # and it goes on
        comm.Barrier()


@pytest.mark.parametrize("scheme", ["topk:k=3", "threshold:lam=5", "randomk:k=8"])
def test_the_same_workers_on_other_ranks_take_the_same_steps(comm, world, folder, seed, scheme):
    """Virtual workers go with their memories: six on one rank, then spread over all, against never having moved."""
    total = 6

    def rows(c, step):
        own = np.array_split(np.arange(total), c.size)[c.rank]
        g = np.stack([integers(seed + step, 1, worker) for worker in own])
        return (g if len(own) > 1 else g[0]), len(own)

    alone = part_of(world, 1)
    expected = np.zeros(40, np.float32)
    if alone:
        reducer = mpicomp.Reducer(alone, scheme, workers=total)
        reducer.reduce(rows(alone, 0)[0])
        whole(alone, folder, reducers={"reducer": reducer})
        expected = reducer.reduce(rows(alone, 1)[0])
    expected = comm.bcast(expected)
    g, count = rows(comm, 1)
    spread = mpicomp.Reducer(comm, scheme, workers=count)
    checkpoint.load(comm, folder).restore(spread)
    np.testing.assert_allclose(spread.reduce(g), expected, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_redistributed_is_refused_on_every_rank(comm, world, folder):
    alone = part_of(world, 1)
    if alone:
        reducer = mpicomp.Reducer(alone, "topk:k=2,memory=shifted", workers=7)
        reducer.set_shift(np.ones((7, 10), np.float32))
        reducer.reduce(np.ones((7, 10), np.float32))
        whole(alone, folder, reducers={"reducer": reducer})
    comm.Barrier()
    saved = checkpoint.load(comm, folder)
    again = mpicomp.Reducer(comm, "topk:k=2,memory=shifted", workers=2)
    with pytest.raises(InvalidArgument, match=rf"resume with 7 workers, got {2 * comm.size}"):
        saved.restore(again)


def test_other_schemes_shapes_and_settings_are_refused_on_every_rank(comm, folder):
    reducer = mpicomp.Reducer(comm, "topk:k=2")
    reducer.reduce(np.arange(8, dtype=np.float32))
    whole(comm, folder, reducers={"reducer": reducer}, settings={"seed": 1, "data": {"rows": np.int64(5)}})
    saved = checkpoint.load(comm, folder)
    saved.check_settings(seed=1, data={"rows": np.int64(5) if comm.rank else 5})
    with pytest.raises(InvalidArgument, match=r"saved with data=\{'rows': 5\}, got \{'rows': 6\}"):
        saved.check_settings(seed=1, data={"rows": 6})
    with pytest.raises(InvalidArgument, match="scheme=topk:k=3, got topk:k=2"):
        saved.restore(mpicomp.Reducer(comm, "topk:k=3"))
    with pytest.raises(InvalidArgument, match="no state of a reducer 'other', only of reducer"):
        saved.restore(mpicomp.Reducer(comm, "topk:k=2"), "other")
    with pytest.raises(InvalidArgument, match=r"holds model x as float64\[9\], this run has float32\[9\]"):
        saved.fill("model", {"x": np.zeros(9, np.float32)})
    with pytest.raises(InvalidArgument, match=f"rank {comm.size - 1}: settings must be numbers, texts, .*got complex"):
        saved.check_settings(seed=1j if comm.rank == comm.size - 1 else 1)
    for odd in (np.longdouble(1), {np.int64(3): 1}):
        with pytest.raises(InvalidArgument, match="settings must be numbers, texts, "):
            saved.check_settings(seed=odd)
    with pytest.raises(InvalidArgument, match=rf"rank {comm.size - 1}: .* as float64\[9\], this run has list"):
        saved.fill("model", {"x": [0.0] * 9 if comm.rank == comm.size - 1 else np.zeros(9)})
    with pytest.raises(InvalidArgument, match=r"holds model x as float64\[9\], this run has nothing"):
        saved.fill("model", {"y": np.zeros(9)})
    with pytest.raises(InvalidArgument, match=f"rank {comm.size - 1}: settings must be numbers, texts, .*got complex"):
        whole(comm, folder, step=2, settings={"seed": 1j if comm.rank == comm.size - 1 else 1})
    assert checkpoint.steps(folder) == [1]
    whole(comm, folder, step=np.int64(2))
    assert checkpoint.steps(folder) == [1, 2]
    again = mpicomp.Reducer(comm, "topk:k=2")
    saved.restore(again)
    with pytest.raises(InvalidArgument, match="residual has 8 elements, the gradients have 9"):
        again.reduce(np.zeros(9, np.float32))


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    data = bytearray(path.read_bytes())
    data[np.random.default_rng().integers(len(data))] ^= 1 << np.random.default_rng().integers(8)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "name"),
    [(truncate, "common.h5"), (flip, "rank_00000.h5"), (os.unlink, "rank_00000.h5"), (truncate, "manifest.json")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_damaged_checkpoint_is_passed_over_or_refused(comm, folder, damage, name):
    reducer = mpicomp.Reducer(comm, "topk:k=2")
    for step in (1, 2):
        reducer.reduce(np.arange(8, dtype=np.float32))
        whole(comm, folder, step, reducers={"reducer": reducer})
    if comm.rank == 0:
        damage(folder / "step-000000002" / name)
    comm.Barrier()
    saved = checkpoint.load(comm, folder)
    assert saved.step == 1 and saved.common["model"]["x"].tolist() == list(range(1, 10))
    assert len(saved.notes) == 1 and "passed over the checkpoint of step 2: " in saved.notes[0]
    with pytest.raises(CorruptFile, match="take that of step 1"):
        checkpoint.load(comm, folder, step=2)
    comm.Barrier()
    if comm.rank == 0:
        damage(folder / "step-000000001" / name)
    comm.Barrier()
    with pytest.raises(CorruptFile, match=r"no checkpoint in .* is whole: .*step 2.*step 1"):
        checkpoint.load(comm, folder)


def test_a_missing_rank_is_noticed_by_any_number_of_ranks(comm, world, folder):
    whole(comm, folder)
    if comm.rank == 0:
        (folder / "step-000000001" / f"rank_{comm.size - 1:05d}.h5").unlink()
    alone = part_of(world, 1)
    for reader in filter(None, (comm, alone)):
        comm.Barrier() if reader is comm else None
        with pytest.raises(CorruptFile, match=rf"rank_{comm.size - 1:05d}.h5 is missing"):
            checkpoint.load(reader, folder)


def test_the_newest_are_kept_and_latest_names_one(comm, folder):
    assert checkpoint.load(comm, folder / "none") is None
    for step in (5, 6, 7):
        whole(comm, folder, step, keep=2)
    assert checkpoint.steps(folder) == [6, 7] and (folder / "latest").read_text() == "step-000000007\n"
    comm.Barrier()
    whole(comm, folder, 6)  # a run that went back: the course it left is set aside, not lost
    assert checkpoint.steps(folder) == [6] and len(list(folder.glob("*.aside1"))) == 2
    assert checkpoint.load(comm, folder, step=6).step == 6
    with pytest.raises(InvalidArgument, match=r"no checkpoint of step 8 .* there are: 6"):
        checkpoint.load(comm, folder, step=8)


def test_ranks_that_do_not_save_the_same_are_told_and_nothing_is_written(comm, folder):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    with pytest.raises(Disagreement, match="common state"):
        checkpoint.save(comm, folder, 1, common={"model": {"x": np.full(3, comm.rank)}})
    with pytest.raises(InvalidArgument, match="must be an array of numbers"):
        checkpoint.save(comm, folder, 1, common={"model": {"x": np.array(["text"] if comm.rank == 0 else [1])}})
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("state", "said"), [
    ({"model/encoder": {"w": np.ones(3)}}, "of a section or a reducer may hold no '/', got 'model/encoder'"),
    ({"model": {"x": np.ones(3), "x/y": np.ones(3)}}, "'model/x/y' beside 'model/x'"),
    ({"model": {"a/" * 16 + "a": np.ones(3)}}, "may hold 15 '/' at most"),
])  # fmt: skip
def test_names_that_could_not_be_read_again_are_refused_on_every_rank(comm, folder, state, said):
    deepest = {"a/" * 15 + "a": np.ones(3)}
    checkpoint.save(comm, folder, 1, common={"model": deepest})
    with pytest.raises(InvalidArgument, match=said):
        checkpoint.save(comm, folder, 2, common=state)
    saved = checkpoint.load(comm, folder)
    assert saved.step == 1 and saved.common["model"].keys() == deepest.keys()


def test_names_come_back_in_their_order(comm, folder):
    """A model that is taken from a checkpoint has the layout of the saved error memories."""
    model = {"w": np.arange(4.0), "bias": np.arange(2.0), "a/z": np.ones(2), "rate": 0.5, "a/b": np.zeros(2)}
    checkpoint.save(comm, folder, 1, common={"model": model, "data": {}}, own={"mine": model})
    checkpoint.save_arrays(comm, folder / "best.h5", {"model": model})
    saved = checkpoint.load(comm, folder)
    assert list(saved.common) == ["model", "data"]
    for read in (saved.common["model"], saved.own["mine"], checkpoint.load_arrays(folder / "best.h5")["model"]):
        assert list(read) == list(model)
        assert all(np.array_equal(read[name], value) for name, value in model.items())


def test_numbers_as_keys_are_read_as_texts(comm, folder):
    """In the order of numbers 2 comes before 10, in that of texts behind it."""
    rates = {2: 0.1, 10: 0.01}
    checkpoint.save(comm, folder, 1, common={"schedule": {"rates": rates}}, settings={"rates": rates})
    assert checkpoint.load(comm, folder).common["schedule"]["rates"] == {"2": 0.1, "10": 0.01}
    checkpoint.save_arrays(comm, folder / "best.h5", {"schedule": {"rates": rates, np.int64(2): np.ones(2)}})
    comm.Barrier()
    read = checkpoint.load_arrays(folder / "best.h5")["schedule"]
    assert list(read) == ["rates", "2"] and read["rates"] == {"2": 0.1, "10": 0.01}


@pytest.mark.parametrize("failing", ["state_dict", "check_shared"])
def test_a_failure_of_one_rank_is_one_of_all_and_leaves_nothing(comm, folder, monkeypatch, failing):
    def fail(*given):
        if comm.rank == comm.size - 1:
            raise MemoryError("no room")
        return {}

    reducer = mpicomp.Reducer(comm, "topk:k=1")
    monkeypatch.setattr(reducer if failing == "state_dict" else checkpoint.folder, failing, fail)
    with pytest.raises(MemoryError, match=f"rank {comm.size - 1}: no room"):
        checkpoint.save(comm, folder, 1, common={}, reducers={"one": reducer})
    comm.Barrier()
    assert list(folder.iterdir()) == []


def test_a_rank_without_memory_for_the_common_state_fails_on_all(comm, folder, monkeypatch):
    whole(comm, folder)
    last = comm.size - 1
    if comm.rank == last > 0:
        monkeypatch.setattr("mpicomp.comm.broadcast.np", SimpleNamespace(empty=no_room, uint8=np.uint8))
    if last:
        with pytest.raises(MemoryError, match=f"rank {last}: no room"):
            checkpoint.load(comm, folder)


def test_the_name_of_a_reducer_may_hold_no_slash(comm, folder):
    with pytest.raises(InvalidArgument, match="of a section or a reducer may hold no '/', got 'reducer:encoder/0'"):
        checkpoint.save(comm, folder, 1, common={}, reducers={"encoder/0": mpicomp.Reducer(comm, "topk:k=1")})


def test_a_full_disk_is_one_error_and_leaves_what_was_there(comm, folder):
    whole(comm, folder, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(MpicompError, match=r"rank 0: cannot write .*step-000000002\.[0-9a-f]{8}\.part"):
            checkpoint.save(comm, folder, 2, common={"model": {"x": np.zeros(1 << 18)}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    comm.Barrier()
    assert checkpoint.load(comm, folder).step == 1 and not list(folder.glob("*.part"))


def test_a_save_that_another_job_breaks_off_is_an_error_and_its_files_never_mix(comm, folder, monkeypatch):
    """Another job begins to save the same step when this one has made its folder."""
    whole(comm, folder, 1)
    others, check = [], checkpoint.folder.check_shared

    def interrupted(part):
        check(part)
        if comm.rank == 0:
            others.append(checkpoint.folder.begin(folder, 2))

    monkeypatch.setattr(checkpoint.folder, "check_shared", interrupted)
    with pytest.raises(MpicompError, match=r"cannot write .*step-000000002"):
        whole(comm, folder, 2)
    comm.Barrier()
    assert checkpoint.steps(folder) == [1] and checkpoint.load(comm, folder).notes == []
    assert all(other.is_dir() and not list(other.iterdir()) for other in others)


def test_own_state_comes_back_to_its_rank(comm, folder):
    checkpoint.save(comm, folder, 3, common={}, own={"scale": {"value": comm.rank + 0.5, "seen": np.arange(comm.rank)}})
    saved = checkpoint.load(comm, folder)
    assert saved.own["scale"]["value"] == comm.rank + 0.5 and saved.own["scale"]["seen"].size == comm.rank
    facts = json.loads((folder / "step-000000003" / "manifest.json").read_text())["manifest"]
    assert facts["step"] == 3 and len(facts["parts"]) == comm.size and not facts["complete"]


def test_a_folder_of_another_version_is_refused(comm, folder, monkeypatch):
    whole(comm, folder)
    monkeypatch.setattr("mpicomp.checkpoint.folder.VERSION", 2)
    with pytest.raises(CorruptFile, match="version 2, got mpicomp-checkpoint version 1"):
        checkpoint.load(comm, folder)
