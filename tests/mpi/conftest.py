"""Runs inside every rank: fixtures, and a verdict that all ranks share.

A test that fails on one rank fails on all of them, with the ranks named, so that none goes on alone into the next
test. A rank that is stuck prints where, and its exit ends the job.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

# For one test: less than the limit of tests/run_mpi.py, so that a rank prints its stack before the job is killed.
STUCK_SECONDS = float(os.environ.get("MPICOMP_TEST_STUCK", 480))
verdict_comm = MPI.COMM_WORLD.Dup()


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.mpi)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True, file=sys.__stderr__)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "teardown":
        return report
    if report.failed:  # said before waiting: the other ranks may be stuck in the test for good
        print(f"\n{item.nodeid} failed on this rank:\n{report.longreprtext}", file=sys.__stderr__, flush=True)
    mine = np.zeros(verdict_comm.size, np.int8)
    mine[verdict_comm.rank] = {"passed": 0, "skipped": 1, "failed": 2}[report.outcome]
    verdict_comm.Allreduce(MPI.IN_PLACE, mine, MPI.MAX)
    failed = np.flatnonzero(mine == 2).tolist()
    if failed and not report.failed:
        report.outcome, report.longrepr = "failed", f"passed here, failed on rank(s) {failed}"
    elif not failed and len(set(mine.tolist())) > 1:
        report.outcome, report.longrepr = "failed", f"skipped on some ranks only: {mine.tolist()}"
    return report


@pytest.fixture(scope="session")
def world():
    return MPI.COMM_WORLD


@pytest.fixture(scope="session")
def comm():
    """One communicator for all tests, every call of which is checked for agreement."""
    import mpicomp

    os.environ["MPICOMP_CHECK"] = "1"
    shared = mpicomp.Comm(MPI.COMM_WORLD)
    del os.environ["MPICOMP_CHECK"]
    return shared


@pytest.fixture
def made():
    """Every communicator that is made during the test."""
    from mpicomp.comm.safety import revocation

    found = []
    revocation.listen(found.append)
    yield found
    revocation.leave(found.append)


@pytest.fixture
def folder(comm):
    """One folder for all ranks, made and removed by rank 0."""
    made = tempfile.mkdtemp() if comm.rank == 0 else ""
    shared = Path(comm.bcast(made))
    yield shared
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(shared)


@pytest.fixture
def seed(world):
    """A fresh seed, the same on every rank; shown when a test fails, and set by MPICOMP_SEED."""
    drawn = int(os.environ.get("MPICOMP_SEED", np.random.SeedSequence().entropy % 2**31))
    drawn = world.bcast(drawn)
    print(f"MPICOMP_SEED={drawn}")
    return drawn


@pytest.fixture
def allocated(monkeypatch):
    """Number of elements of every array in host memory that operations make."""
    from mpicomp.ops import ops_for

    sizes, ops = [], ops_for(np.empty(0))
    empty = ops.empty
    monkeypatch.setattr(ops, "empty", lambda n, dtype: sizes.append(n) or empty(n, dtype))
    return sizes


@pytest.fixture
def shared_tmp(world, tmp_path_factory):
    """One new folder that all ranks see."""
    path = str(tmp_path_factory.mktemp("shared")) if world.rank == 0 else None
    from pathlib import Path

    return Path(world.bcast(path))
