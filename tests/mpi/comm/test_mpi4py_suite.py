"""mpi4py's own tests of the buffer collectives, with our communicators in the place of COMM_WORLD and COMM_SELF."""

from __future__ import annotations

import importlib
import io
import os
import sys
import unittest

import pytest
from mpi4py import MPI

MPICH = MPI.get_vendor()[0] == "MPICH"
# The non-blocking, persistent and vector ones are inherited as they are: one rank shows that nothing is in their way.
MODULES = ["test_cco_buf"]
if MPI.COMM_WORLD.size == 1:
    MODULES += ["test_cco_vec", "test_cco_nb_buf", "test_cco_pr_buf"]


@pytest.fixture(scope="module")
def source():
    """The unpacked tests of the installed mpi4py, downloaded before the job by tests/run_mpi.py."""
    folder = os.environ.get("MPICOMP_MPI4PY_TESTS", "")
    if not os.path.exists(os.path.join(folder, "test_cco_buf.py")):
        pytest.skip("mpi4py's source distribution is not here (no package index?)")
    if MPI.COMM_WORLD.size > (2 if MPICH else 4):
        pytest.skip("small jobs are enough")
    sys.path.insert(0, folder)
    yield folder
    sys.path.remove(folder)


@pytest.fixture(params=["auto", "ring"])
def replacements(request, world, monkeypatch):
    from mpicomp import Comm

    monkeypatch.setenv("MPICOMP_ALGORITHM", request.param)
    ours = {"world": Comm(world), "self": Comm(MPI.COMM_SELF)}
    yield ours
    for comm in ours.values():
        comm.Free()


@pytest.mark.parametrize("name", MODULES)
def test_suite(source, replacements, name):
    suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(name))
    if replacements["world"]._engine.default != "auto":  # only the all-reduce is ours
        if name != "test_cco_buf":
            pytest.skip("has no all-reduce of ours")
        suite = unittest.TestSuite(case for case in cases(suite) if "Allreduce" in case.id())
    replaced = set()
    for case in cases(suite):
        for which, theirs in (("world", MPI.COMM_WORLD), ("self", MPI.COMM_SELF)):
            if getattr(case, "COMM", None) == theirs:
                case.COMM = replacements[which]
                replaced.add(which)
    assert replaced == {"world", "self"}
    stream = io.StringIO()
    result = unittest.TextTestRunner(stream).run(suite)
    assert result.testsRun
    assert result.wasSuccessful(), stream.getvalue()


def cases(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases(item)
        else:
            yield item
