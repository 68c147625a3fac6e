"""Apps that are stopped and resumed end with the bits of a run that was not, and say so when they cannot."""

import numpy as np
import pytest
from mpi4py import MPI

import mpicomp
from mpicomp import optim
from mpicomp.apps import data, images, logreg, loop, loop_settings
from mpicomp.apps.checkpoints import Keeper
from mpicomp.apps.loop_settings import LoopSettings
from mpicomp.apps.mlp import MLP
from mpicomp.apps.settings import Settings
from mpicomp.errors import InvalidArgument


class Asked:
    """One rank only is asked to stop, before the end of a step."""

    def __init__(self, comm, calls):
        self.left = calls if comm.rank == comm.size - 1 else 1 << 30

    def __call__(self):
        self.left -= 1
        return self.left <= 0


def train_logreg(comm, keeper=None, scheme="topk:k=3", target_bits=(300, 2000), rows=None, epochs=2):
    settings = Settings(scheme, workers=2 * comm.size, epochs=epochs, shift=1e-3, eval_every=4, target_bits=target_bits)
    rows = rows or data.share(comm, "synthetic:n=103,d=21,seed=7")
    return logreg.train(comm, rows, settings, keeper=keeper)


def train_mlp(comm, keeper=None, scheme="topk:density=0.05"):
    task = MLP(images.share(comm, "synthetic:train=120,test=40"), 0, comm.rank, comm.size, hidden=(9,))
    settings = LoopSettings(scheme, workers=2 * comm.size, batch=3, epochs=2, lr=0.01, eval_every=3,
                            optimizer=None if "dgc" in scheme else "adam", schedule="cosine")
    return loop.train(comm, task, settings, keeper=keeper)


def train_outer(comm, keeper=None, scheme="topk:density=0.3", **changes):
    task = MLP(images.share(comm, "synthetic:train=120,test=40"), 0, comm.rank, comm.size, hidden=(9,))
    changes = {"outer": "diloco", "every": 4, "fragments": 2, "delay": 2, "outer_momentum": 0.5, **changes}
    if changes["outer"] is None:
        changes = {name: value for name, value in changes.items() if name not in loop_settings.OUTER_SETTINGS}
    settings = LoopSettings(scheme, batch=3, epochs=2, lr=0.01, optimizer="adam", eval_every=3, **changes)
    return loop.train(comm, task, settings, keeper=keeper)


def train_after_warmup(comm, keeper=None, scheme="topk:density=0.3"):
    """Stopped after five steps it is in the warm-up, of eight steps, on one rank, and behind it on more."""
    return train_outer(comm, keeper, scheme, outer_warmup=0.2, outer_warmup_scheme=scheme)


def train_momenta(comm, keeper=None, optimizer="onebit-adam:warmup=3", scheme="dense", workers=None, epochs=3):
    task = MLP(images.share(comm, "synthetic:train=120,test=40"), 0, comm.rank, comm.size, hidden=(9,))
    settings = LoopSettings(workers=workers or comm.size + 1, batch=3, epochs=epochs, lr=0.01,
                            optimizer=optimizer, scheme=scheme, eval_every=1)  # fmt: skip
    return loop.train(comm, task, settings, keeper=keeper)


def plain(result):
    return {**result.to_dict(), "seconds": None}


pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size > 3, reason="nothing here is new on more than 3 ranks")

LONG = pytest.mark.long("three trainings each")
CASES = [(train_logreg, "topk:k=3"), (train_outer, "topk:density=0.3"),
         (train_after_warmup, "topk:density=0.3"), (train_momenta, "onebit-adam:warmup=3"),
         (train_momenta, "zero-one-adam:warmup=4,kappa=2,doubling=2,longest=3"),
         *(pytest.param(*case, marks=LONG) for case in (
    (train_logreg, "error-reset:density=0.2,period=3"), (train_mlp, "topk:density=0.05"),
    (train_mlp, "dgc:density=0.1"), (train_mlp, "powersgd:rank=2")))]  # fmt: skip


@pytest.mark.parametrize(("train", "scheme"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_stopped_and_resumed_is_as_if_nothing_had_been(comm, folder, train, scheme):
    straight = train(comm, None, scheme)
    stopped = train(comm, keeper := Keeper(comm, folder, asked=Asked(comm, 5)), scheme)
    assert stopped.steps == 5 and not stopped.complete and keeper.stopped
    said = []
    again = Keeper(comm, folder, every=2, resume=True, say=said.append)
    resumed = train(comm, again, scheme)
    assert said == [f"resumed after step 5 from {folder / 'step-000000005'}"]
    assert plain(resumed) == plain(straight) and resumed.complete
    done = train(comm, Keeper(comm, folder, resume=True), scheme)
    assert plain(done) == plain(straight)


def test_a_resumed_run_must_be_the_same_app_and_data(comm, folder):
    train_logreg(comm, Keeper(comm, folder, asked=Asked(comm, 3)))
    with pytest.raises(InvalidArgument, match="saved with app=logreg, got mlp"):
        train_mlp(comm, Keeper(comm, folder, resume=True))
    with pytest.raises(InvalidArgument, match="saved with scheme=topk:k=3, got topk:k=4"):
        train_logreg(comm, Keeper(comm, folder, resume=True), "topk:k=4")
    with pytest.raises(InvalidArgument, match=r"saved with target_bits=\[300, 2000\], got \[300\]"):
        train_logreg(comm, Keeper(comm, folder, resume=True), target_bits=(300,))
    other = data.share(comm, "synthetic:n=103,d=21,seed=8")
    with pytest.raises(InvalidArgument, match=r"saved with data=.*crc32"):
        train_logreg(comm, Keeper(comm, folder, resume=True), rows=other)


@pytest.mark.parametrize("train", [train_logreg, train_momenta])
def test_a_run_is_not_resumed_for_fewer_epochs_than_it_has_done(comm, folder, train):
    """It would count as complete, without an evaluation at its end."""
    one = train(comm, epochs=1).steps
    train(comm, Keeper(comm, folder, asked=Asked(comm, one)), epochs=2)
    text = "epochs must go beyond what the run to resume has done, 1, got 1: give more"
    with pytest.raises(InvalidArgument, match=text):
        train(comm, Keeper(comm, folder, resume=True), epochs=1)
    done = train(comm, Keeper(comm, folder, resume=True), epochs=2)
    assert done.complete and plain(train(comm, Keeper(comm, folder, resume=True), epochs=2)) == plain(done)
    with pytest.raises(InvalidArgument, match=text.replace("done, 1", "done, 2")):
        train(comm, Keeper(comm, folder, resume=True), epochs=1)


def test_outer_steps_are_one_worker_per_rank_and_resume_with_the_same_settings(comm, folder):
    with pytest.raises(InvalidArgument, match=f"one worker per rank, got diloco and {comm.size + 1} workers"):
        train_outer(comm, workers=comm.size + 1)
    with pytest.raises(InvalidArgument, match="outer must be diloco"):
        train_outer(comm, outer="adam")
    with pytest.raises(InvalidArgument, match="fragments must be at most the number of parameters, 4, got 5"):
        train_outer(comm, fragments=5)
    train_outer(comm, Keeper(comm, folder, asked=Asked(comm, 5)))
    for changes, text in (({"every": 5}, "every=4, got 5"), ({"outer": None}, "outer=diloco, got None")):
        with pytest.raises(InvalidArgument, match=text):
            train_outer(comm, Keeper(comm, folder, resume=True), **changes)
    if comm.size > 1:
        alone = mpicomp.Comm(MPI.COMM_SELF)
        with pytest.raises(InvalidArgument, match=f"with workers={comm.size}|on {comm.size} ranks"):
            train_outer(alone, Keeper(alone, folder, resume=True), workers=1)
    comm.Barrier()


@pytest.mark.parametrize("scheme", ["dense", "topk:density=0.3"])
def test_a_warm_up_of_outer_steps_averages_gradients(comm, scheme):
    averaged, all_warm, none, half = (
        train_outer(comm, scheme=scheme, clip=1.0, **changes).series
        for changes in ({"outer": None}, {"outer_warmup": 2.0, "outer_warmup_scheme": scheme}, {},
                        {"outer_warmup": 1.0, "outer_warmup_scheme": scheme}))  # fmt: skip
    averaged[-1] = averaged[-1]._replace(memory_norm=0.0)  # which ends with the warm-up
    assert all_warm == averaged
    warm = [point for point in averaged if point.epoch < 1]
    assert warm and half[: len(warm)] == warm
    assert none[-1].bits < half[-1].bits < averaged[-1].bits
    if comm.size > 1:
        assert len({series[-1].test_loss for series in (averaged, none, half)}) == 3


@pytest.mark.parametrize(("changes", "text"), [
    ({"outer_warmup": -1.0}, r"outer_warmup must be from 0 to 1e\+09 epochs, got -1\.0"),
    ({"outer_warmup_scheme": "localsgd"}, "outer_warmup_scheme must have the same mean on all ranks, got localsgd"),
    ({"outer_warmup_scheme": "dgc"}, "of dgc.* has the momentum itself"),
])  # fmt: skip
def test_a_warm_up_that_cannot_be(comm, changes, text):
    with pytest.raises(InvalidArgument, match=text):
        train_outer(comm, **changes)


def test_settings_know_all_optimizers_that_communicate():
    assert set(loop_settings.COMMUNICATING) == set(optim.COMMUNICATING)


def test_momenta_resume_on_the_same_ranks_only(comm, folder):
    train_momenta(comm, Keeper(comm, folder, asked=Asked(comm, 5)))
    with pytest.raises(InvalidArgument, match=r"optimizer=onebit-adam:warmup=3, got onebit-adam:warmup=4"):
        train_momenta(comm, Keeper(comm, folder, resume=True), "onebit-adam:warmup=4")
    if comm.size > 1:
        alone = mpicomp.Comm(MPI.COMM_SELF)
        with pytest.raises(InvalidArgument, match=f"state of its own: resume on {comm.size} ranks"):
            train_momenta(alone, Keeper(alone, folder, resume=True), workers=comm.size + 1)
    comm.Barrier()


def test_bits_of_momenta_are_dense_in_the_warm_up_only(comm):
    bits, fewer = ([point.bits for point in train_momenta(comm, scheme=scheme, workers=comm.size).series]
                   for scheme in ("dense", "int4:memory=residual"))
    each = np.diff([0, *bits])
    assert min(each[:3]) == max(each[:3]) > 3 * max(each[3:])
    assert fewer[2] < bits[2] / 4


def test_on_fewer_ranks_the_workers_go_with_their_memories(comm, folder):
    """With an exchange that adds workers in their order, even the bits are the same."""
    straight = train_logreg(comm)
    train_logreg(comm, Keeper(comm, folder, asked=Asked(comm, 5)))
    if comm.rank == 0:
        alone, said = mpicomp.Comm(MPI.COMM_SELF), []
        settings = Settings("topk:k=3", epochs=2, shift=1e-3, eval_every=4, target_bits=(300, 2000))  # workers as saved
        keeper = Keeper(alone, folder, resume=True, say=said.append)
        resumed = logreg.train(alone, data.share(alone, "synthetic:n=103,d=21,seed=7"), settings, keeper=keeper)
        assert ("their sum is kept" in said[0]) == (comm.size > 1)
        assert resumed.settings.workers == 2 * comm.size and resumed.steps == straight.steps
        for mine, expected in zip(resumed.series + resumed.targets, straight.series + straight.targets, strict=True):
            assert mine == pytest.approx(expected, rel=1e-6, abs=1e-9)
    comm.Barrier()


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_training(comm, folder):
    blocked = folder / "file"
    if comm.rank == 0:
        blocked.write_text("not a folder")
    comm.Barrier()
    said = []
    keeper = Keeper(comm, folder / "ok", every=2, say=said.append)
    keeper._folder = blocked
    with pytest.raises(mpicomp.errors.MpicompError, match="cannot write checkpoints into"):
        train_logreg(comm, keeper)  # the last one is an error
    assert len(said) >= 2 and all(text.startswith("warning: rank 0: cannot write") for text in said)
    assert blocked.read_text() == "not a folder"


def test_ranks_disagree_about_a_task(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    task = MLP(images.load("synthetic:train=120,test=40"), 0, hidden=(9 + (comm.rank == 0),))
    with pytest.raises(mpicomp.errors.Disagreement, match="layers"):
        loop.train(comm, task, LoopSettings(batch=3))
    assert np.isfinite(task.parameters["weight1"]).all()
