"""Training on every number of ranks: the same trajectory, the same errors."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from mpi4py import MPI

import mpicomp
from mpicomp.apps import data, logreg
from mpicomp.apps.settings import Settings
from mpicomp.cli.train.command import logreg as command
from mpicomp.errors import CorruptFile, Disagreement, InvalidArgument, RefusedOverwrite
from mpicomp.trace import NullRecorder

SOURCE = "synthetic:n=203,d=31,seed=7"


def test_every_rank_gets_the_data_that_rank_0_read(comm):
    shared, mine = data.share(comm, SOURCE), data.load(SOURCE)
    assert shared.name == mine.name and type(shared.features) is type(mine.features)
    assert np.array_equal(shared.features.values, mine.features.values)
    assert np.array_equal(shared.labels, mine.labels)


def test_sparse_data_is_shared(comm, shared_tmp):
    path = shared_tmp / "rows"
    if comm.rank == 0:
        path.write_text("1 1:1 100:2\n-1 50:3\n1 7:4\n")
    shared = data.share(comm, str(path))
    assert shared.features.shape == (3, 100)
    assert shared.features.times(np.ones(100)).tolist() == [3, 3, 4]


@pytest.mark.parametrize("scheme", ["topk:k=2,switch=never", "threshold:lam=300,switch=never"])
def test_the_trajectory_does_not_depend_on_the_number_of_ranks(comm, scheme):
    """To the last bit with the gather exchange, which adds the workers in a fixed order."""
    workers = max(11, comm.size)
    dataset = data.share(comm, SOURCE)
    settings = Settings(scheme, workers=workers, epochs=3, shift=1e-3, target_bits=(500,))
    spread, alone = (logreg.train(c, dataset, settings) for c in (comm, mpicomp.Comm(MPI.COMM_SELF)))
    for mine, expected in zip(spread.series + spread.targets, alone.series + alone.targets, strict=True):
        assert (mine.step, mine.bits) == (expected.step, expected.bits)
        assert mine == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("scheme", ["dense", "scalecom:chunk=4"])
def test_the_gap_closes(comm, scheme):
    dataset = data.share(comm, SOURCE)
    result = logreg.train(comm, dataset, Settings(scheme, workers=2 * comm.size, epochs=5, shift=1e-3))
    assert 0 < result.series[-1].gap < 0.5 * (result.f_start - result.problem.f_star)
    assert result.data["ranks"] == comm.size
    assert (result.bytes_sent > 0) == (comm.size > 1)


def test_results_are_the_same_on_every_rank(comm, world):
    dataset = data.share(comm, SOURCE)
    result = logreg.train(comm, dataset, Settings("topk:k=1", epochs=1))
    mine = {**result.to_dict(), "seconds": None}
    assert world.bcast(mine) == mine


class Spy(NullRecorder):
    def __init__(self):
        self.metrics, self.regions, self.steps = [], [], []

    def metric(self, name, step, value):
        self.metrics.append((name, step))

    def region(self, kind):
        self.regions.append(kind)
        return super().region(kind)

    def step(self, step):
        self.steps.append(step)
        return super().step(step)


def test_the_trace_gets_regions_and_metrics(comm):
    spy = Spy()
    result = logreg.train(comm, data.share(comm, SOURCE), Settings("topk:k=1", epochs=1), trace=spy)
    assert spy.steps == list(range(result.steps)) and spy.regions.count("compute") == result.steps
    names = ["gap", "bits", "density", "memory_norm"]
    known = [(name, step) for step in (0, result.steps) for name in names]
    known.remove(("density", 0))  # of no step
    assert spy.metrics == known * (comm.rank == 0)


def test_too_few_workers_are_refused_on_every_rank(comm):
    with pytest.raises(InvalidArgument, match=f"workers must be at least {comm.size} "):
        logreg.train(comm, data.share(comm, SOURCE), Settings(workers=comm.size - 1))


def test_an_unreadable_file_is_refused_on_every_rank(comm, shared_tmp):
    path = shared_tmp / "bad"
    if comm.rank == 0:
        path.write_text("1 1:2\n-1 2:x\n")
    with pytest.raises(CorruptFile, match=r"rank 0: .*line 2, column 4"):
        data.share(comm, str(path))
    with pytest.raises(InvalidArgument, match="no file"):
        data.share(comm, str(shared_tmp / "none"))


def test_refused_data_leave_no_trace(comm, shared_tmp):
    path = shared_tmp / "zeros"
    if comm.rank == 0:
        path.write_text("1 1:0\n" * 8 + "-1 2:0\n" * 8)
    arguments = ["--data", str(path), "--trace", str(shared_tmp / "run.h5")]
    with pytest.raises(InvalidArgument, match="all features of zeros are zero"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)
    comm.Barrier()
    assert [found.name for found in shared_tmp.iterdir()] == ["zeros"]


def test_different_settings_are_refused_on_every_rank(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    dataset = data.share(comm, SOURCE)
    with pytest.raises(Disagreement, match="seed"):
        logreg.train(comm, dataset, Settings(seed=int(comm.rank == 0)))


def test_the_command_prints_one_json_document_and_a_table_on_rank_0_only(comm, shared_tmp):
    trace = str(shared_tmp / "run.h5")
    arguments = ["--data", SOURCE, "--workers", str(2 * comm.size), "--epochs", "1", "--scheme", "topk:k=2"]
    ran = CliRunner().invoke(command, [*arguments, "--json", "--trace", trace], catch_exceptions=False)
    if comm.rank == 0:
        document = json.loads(ran.stdout)
        assert document["steps"] == document["series"][-1]["step"] and document["settings"]["scheme"] == "topk:k=2"
    else:
        assert ran.stdout == ""
    table = CliRunner().invoke(command, arguments, catch_exceptions=False).stdout
    assert ("memory norm" in table) == (comm.rank == 0)
    with pytest.raises(RefusedOverwrite):
        CliRunner().invoke(command, [*arguments, "--trace", trace], catch_exceptions=False)
