"""Apps with PyTorch on several ranks: as one process with all the workers, and resumed as if never stopped."""

import needs_torch  # noqa: F401
import numpy as np
import pytest
from mpi4py import MPI

import mpicomp
from mpicomp.apps import images, loop, ratings, texts
from mpicomp.apps.checkpoints import Keeper
from mpicomp.apps.language import Language
from mpicomp.apps.loop_settings import LoopSettings
from mpicomp.apps.recommend import Recommend
from mpicomp.apps.vision import Vision
from mpicomp.errors import InvalidArgument

WORKERS = 4


def language(comm):
    text = texts.share(comm, "synthetic:tokens=1200,symbols=12,seed=1")
    return Language(text, 0, "lstm", comm.rank, comm.size, width=8, layers=2, bptt=5, dropout=0.2)


def transformer(comm):
    text = texts.share(comm, "synthetic:tokens=1200,symbols=12,seed=1")
    return Language(text, 0, "transformer", comm.rank, comm.size, width=8, bptt=5)


def recommend(comm):
    data = ratings.share(comm, "synthetic:users=60,items=150,each=10,seed=2")
    return Recommend(data, 0, "neumf", comm.rank, comm.size, factors=4, layers=(8, 4))


def vision(comm):
    data = images.share(comm, "synthetic:train=160,test=30,seed=1,channels=3")
    return Vision(data, 0, "resnet8", comm.rank, comm.size)


TASKS = (language, transformer, recommend, vision)


def trained(comm, make, scheme="dense", keeper=None, workers=WORKERS):
    task = make(comm)
    settings = LoopSettings(scheme, workers=workers, batch=4, epochs=10 / (task.rows // (WORKERS * 4)), lr=0.02,
                            clip=1.0, eval_every=4)  # fmt: skip
    return task.parameters, loop.train(comm, task, settings, keeper=keeper)


@pytest.mark.parametrize("make", TASKS)
def test_ranks_are_one_process_with_as_many_workers(comm, make):
    found, report = trained(comm, make)
    expected, alone = trained(mpicomp.Comm(MPI.COMM_SELF), make)
    for name, w in expected.items():
        np.testing.assert_allclose(found[name], w, rtol=1e-4, atol=1e-5)
    for mine, other in zip(report.series, alone.series, strict=True):
        assert mine.metric == pytest.approx(other.metric, rel=1e-3) and mine.bits == other.bits
        assert mine.test_loss == pytest.approx(other.test_loss, rel=1e-4)
    assert report.steps == 10 and not np.array_equal(found[name], make(comm).parameters[name])


class Asked:
    """The last rank is asked to stop, in the seventh step: in the middle of the text."""

    def __init__(self, comm):
        self.left = 7 if comm.rank == comm.size - 1 else 1 << 30

    def __call__(self):
        self.left -= 1
        return self.left <= 0


@pytest.mark.parametrize("make", TASKS)
def test_resumed_is_as_if_never_stopped(comm, folder, make):
    whole, straight = trained(comm, make, "topk:density=0.1")
    _, stopped = trained(comm, make, "topk:density=0.1", Keeper(comm, folder, asked=Asked(comm)))
    assert stopped.steps == 7 and not stopped.complete
    found, report = trained(comm, make, "topk:density=0.1", Keeper(comm, folder, resume=True))
    assert all(np.array_equal(found[name], w) for name, w in whole.items())
    assert {**report.to_dict(), "seconds": 0} == {**straight.to_dict(), "seconds": 0} and report.complete


def test_on_other_ranks_the_state_of_the_text_goes_along(comm, folder):
    """An LSTM's state belongs to its worker: one process alone goes on with those of all."""
    _, straight = trained(comm, language)
    trained(comm, language, keeper=Keeper(comm, folder, asked=Asked(comm)))
    if comm.rank == 0:
        alone = mpicomp.Comm(MPI.COMM_SELF)
        _, report = trained(alone, language, keeper=Keeper(alone, folder, resume=True), workers=None)
        assert report.steps == 10 and report.settings.workers == WORKERS
        assert report.series[-1].train_loss == pytest.approx(straight.series[-1].train_loss, rel=1e-4)
        assert report.series[-1].metric == pytest.approx(straight.series[-1].metric, rel=1e-4)
    comm.Barrier()


@pytest.mark.parametrize("share", [texts.share, ratings.share, images.share])
def test_a_wrong_name_is_refused_on_every_rank(comm, share):
    with pytest.raises(InvalidArgument, match="nothing-there"):
        share(comm, "nothing-there")
