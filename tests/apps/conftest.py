"""Fixtures of the training apps: the real data if a copy exists, and a communicator of one process."""

import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpicomp.comm.interfaces import Traffic

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def real_data():
    """``real_data("a9a/a9a.gz")``: the path of a public data set, or the test is skipped."""
    folder = Path(os.environ.get("MPICOMP_DATA", ROOT / "../shared/data"))

    def find(name):
        path = folder / name
        if not path.is_file():
            pytest.skip(f"no copy of {name} in {folder}: set MPICOMP_DATA to a folder that has one")
        return str(path)

    return find


class Alone:
    """Stand-in for a communicator of one process, without MPI: the methods that the apps and the reducer use."""

    rank, size, own_message, traffic, log = 0, 1, 0, Traffic(), None
    reproducible, levels = False, None

    def count_reducer(self):
        return 1

    def agree(self, signature, error=None, patient=False):
        if error is not None:
            raise error

    def fail_together(self, error):
        self.agree("", error)

    def bcast(self, value):
        return value

    def open_device(self, like):
        pass

    def broadcast(self, x, root):
        pass

    def allreduce_in_place(self, x, algorithm="auto", op="sum", kind=None, factor=1.0):
        x *= x.dtype.type(factor)

    def allreduce_from(self, source, x, algorithm="auto", factor=1.0):
        x[:] = source * x.dtype.type(factor)

    def extremes(self, number):
        return number, number

    def lengths_of_all(self, length):
        return [length]

    def gather_to_all(self, x, counts=None):
        return x.copy(), [x.size]

    @contextmanager
    def meanwhile(self, work):
        yield
        list(work)


@pytest.fixture
def alone():
    return Alone()
