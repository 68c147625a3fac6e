"""Work that may fail on some ranks, on threads that stand for ranks."""

import threading

import pytest
from progress import PATIENCE_S

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
