"""Work that may fail on some ranks, on threads that stand for ranks."""

import threading

import numpy as np
import pytest
from mpi4py import MPI
from progress import PATIENCE_S

import mpicomp
from mpicomp import checkpoint, trace
from mpicomp.comm.safety.collective_errors import run_collectively
from mpicomp.errors import InvalidArgument


class Ranks:
    """Stand-in for a Comm with ``size`` threads as ranks: the error of any is raised on all."""

    def __init__(self, size):
        self.errors, self.barrier = [None] * size, threading.Barrier(size, timeout=PATIENCE_S)

    def at(self, rank):
        ranks = self

        class Comm:
            def fail_together(self, error):
                ranks.errors[rank] = error
                ranks.barrier.wait()
                for one in ranks.errors:
                    if one is not None:
                        raise one

        return Comm()


def outcomes(size, work, here=lambda rank: True):
    """Return value or error of ``run_collectively`` on each of ``size`` ranks."""
    ranks, found = Ranks(size), [None] * size

    def run(rank):
        try:
            found[rank] = run_collectively(ranks.at(rank), lambda: work(rank), here(rank))
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return found


def test_each_rank_gets_what_its_work_gave():
    assert outcomes(3, lambda rank: 10 * rank) == [0, 10, 20]


def test_ranks_that_do_not_work_get_none():
    assert outcomes(3, lambda rank: f"read by {rank}", lambda rank: rank == 0) == ["read by 0", None, None]


@pytest.mark.parametrize("kind", [InvalidArgument, OSError, ZeroDivisionError, KeyError])
def test_an_error_of_one_rank_is_raised_on_all(kind):
    """Also an unforeseen one: the others must not wait for the rank that has it."""
    def work(rank):
        if rank == 2:
            raise kind("of rank 2")
        return rank

    assert [type(one) for one in outcomes(4, work)] == [kind] * 4


@pytest.mark.parametrize(
    "call",
    [
        lambda comm, path: mpicomp.Reducer(comm, "dense"),
        lambda comm, path: trace.Recorder(comm, path),
        lambda comm, path: checkpoint.save(comm, path, 1, common={}),
        lambda comm, path: checkpoint.save_arrays(comm, path, {"own": {"x": np.ones(3)}}),
        lambda comm, path: checkpoint.load(comm, path),
    ],
    ids=["Reducer", "Recorder", "save", "save_arrays", "load"],
)
def test_a_communicator_of_mpi4py_is_refused_with_what_to_do(call, tmp_path):
    with pytest.raises(InvalidArgument, match=r"got Intracomm: make one by mpicomp\.Comm\(MPI\.COMM_WORLD\)"):
        call(MPI.COMM_SELF, tmp_path / "file")
    assert not list(tmp_path.iterdir())


def test_a_comm_is_made_of_a_communicator_alone():
    with pytest.raises(InvalidArgument, match=r"of mpi4py, such as MPI\.COMM_WORLD, got str"):
        mpicomp.Comm("world")
